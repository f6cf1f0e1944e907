# SPDX-License-Identifier: Apache-2.0
# Usage: echo.pl server PLACE | echo.pl client PLACE CONNECTIONS BYTES; a port, or a path
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Digest::SHA qw(sha256);

my ($mode, $place, $connections, $bytes) = @ARGV;
my $path = $place =~ m{^/};

# The server forks for each connection; the client as well.
if ($mode eq 'server') {
  $SIG{CHLD} = 'IGNORE';
  my $server = $path ? IO::Socket::UNIX->new(Local => $place, Listen => 128)
    : IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $place, Listen => 128, ReuseAddr => 1);
  die "no server: $!" unless $server;
  while (1) {
    my $there = $server->accept or next;
    if (fork == 0) {
      while (sysread($there, my $data, 50000)) {
        for (my $at = 0; $at < length $data;) {
          my $wrote = syswrite($there, $data, length($data) - $at, $at) // die "write: $!";
          $at += $wrote;
        }
      }
      exit 0;
    }
    close $there;
  }
}

my $right = 0;
my @children;
for my $number (0 .. $connections - 1) {
  my $pid = fork // die;
  if ($pid) { push @children, $pid; next; }
  my $here = $path ? IO::Socket::UNIX->new(Peer => $place)
    : IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $place);
  die "no connection: $!" unless $here;
  $here->blocking(0);
  my $data = pack 'L*', map { $_ * 2654435761 % 4294967296 } 0 .. $number * $bytes / 4;
  my ($sent, $back) = (0, '');
  my $select = IO::Select->new($here);
  while (1) {
    my ($read, $write) = IO::Select->select($select, $sent < length $data ? $select : undef, undef, 20);
    die "nothing happens" unless $read || $write;
    if ($write && @$write) {
      my $wrote = syswrite $here, $data, 30000, $sent;
      $sent += $wrote if $wrote;
      shutdown $here, 1 if $sent == length $data;
    }
    if ($read && @$read) {
      my $got = sysread $here, $back, 65536, length $back;
      last if defined $got && $got == 0;
    }
  }
  exit(sha256($back) eq sha256($data) ? 0 : 1);
}
for (@children) { waitpid $_, 0; $right++ if $? == 0; }
print "$right echoes\n";
