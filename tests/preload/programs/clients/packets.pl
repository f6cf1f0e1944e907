# SPDX-License-Identifier: Apache-2.0
# A client of packets.py: packets.pl PATH
use strict;
use warnings;
use Socket;

socket(my $server, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!";
connect($server, sockaddr_un($ARGV[0])) or die "connect: $!";
for my $round (1 .. 3000) {
    my $question = "round $round " . 'x' x ($round % 700);
    defined(send($server, $question, 0)) or die "send: $!";
    defined(sysread($server, my $answer, 10_000)) or die "read: $!";
    die "round $round: another answer" if $answer ne $question;
}
print "all packets came back\n";
