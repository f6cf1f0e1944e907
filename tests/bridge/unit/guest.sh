#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
#
# In the guest, as a service that systemd has started: what the unit of the bridge promises. The users
# are server, who serves doors, caller, who calls, and the bridge's own.
export PATH=/usr/bin:/bin SYSTEMD_PAGER='' SYSTEMD_COLORS=0
/bin/busybox --install -s /bin
echo "# $(uname -r), $(systemctl --version | head -n 1)"

unit=farcall-bridge
config=/etc/farcall/bridge.toml
example=/usr/share/doc/farcall-bridge/examples/bridge.toml

as() { su -s /bin/sh "$1" -c "$2"; }
# show PROPERTY...: of the unit, in one line.
show() { for property; do systemctl show "$unit" --value -p "$property"; done | xargs; }
# What the bridge itself has said since it was last asked, without what systemd says of it.
said() { journalctl --sync && journalctl -q -o cat --cursor-file=/run/cursor "_SYSTEMD_UNIT=$unit.service"; }
# is NAME WANTED COMMAND...: the command succeeds, and prints that.
is() {
  name=$1 wanted=$2
  shift 2
  if got=$("$@" 2>&1) && [ "$got" = "$wanted" ]; then
    echo "ok - $name"
  else
    echo "$got" | sed 's/^/# /'
    echo "not ok - $name"
  fi
}
# like NAME WANTED COMMAND...: it prints this, and whether it succeeds does not matter.
like() {
  name=$1 wanted=$2
  shift 2
  got=$("$@" 2>&1)
  # shellcheck disable=SC2254 # a pattern
  case $got in
    $wanted) echo "ok - $name" ;;
    *)
      echo "$got" | sed 's/^/# /'
      echo "not ok - $name"
      ;;
  esac
}
# within SECONDS COMMAND...: until it succeeds.
within() {
  left=$(($1 * 10))
  shift
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || return 1
    sleep 0.1
  done
}
nats() { # PORT ARGUMENT...
  port=$1
  shift
  nats-server -a 127.0.0.1 -p "$port" "$@" >/dev/null 2>&1 &
  within 60 nc 127.0.0.1 "$port" </dev/null
}

mkdir /etc/farcall /run/text
chown server /run/text
as server 'exec farcall door serve /run/text/upper -- tr a-z A-Z' &
as server 'exec farcall door serve /run/text/slow -- sh -c "touch /run/text/called; sleep 2; cat"' &
within 60 [ -e /run/text/slow ]

is "systemd finds nothing wrong with the unit" "" systemd-analyze verify --man=no "/lib/systemd/system/$unit.service"
like "it is exposed to little" "*OK*" systemd-analyze security --offline=yes --threshold=20 "$unit.service"

# What is wrong with a configuration stays wrong.
printf '[nats]\nservers = ["nats://127.0.0.1:4222"]\n[[import]]\nsubjekt = "text.upper"\n' >$config
like "a wrong configuration does not start" "Job for $unit.service failed*" systemctl start $unit
like "it is told by file, line, cause and cure, once" \
  "farcall: $config:4: 'subjekt' is not known here; there are: *subject*" said
sleep 2
is "it is not tried again" "failed 2 0" show ActiveState ExecMainStatus NRestarts

cat >$config <<END
[nats]
servers = ["nats://127.0.0.1:4222"]
[[export]]
door = "/run/text/upper"
subject = "text.upper"
[[export]]
door = "/run/text/slow"
subject = "text.slow"
[[import]]
subject = "text.upper"
door = "/run/farcall/upper"
mode = 0o666
[[import]]
subject = "text.slow"
door = "/run/farcall/slow"
mode = 0o666
allow = ["caller"]
[[import]]
subject = "text.upper"
channel = "upper"
mode = 0o666
END
like "without a cluster it does not start" "Job for $unit.service failed*" systemctl start $unit
like "and says so" "farcall: cannot connect to nats://127.0.0.1:4222: *start nats-server*" said
is "it is tried for as long as it takes" "activating 0" show ActiveState StartLimitIntervalUSec
nats 4222
is "and starts once the cluster is there" "" within 60 systemctl is-active $unit
is "the example is a configuration, too" "the configuration is right, and the cluster permits it" \
  farcall bridge --config $example --check
systemctl stop $unit

is "start ends when all names are served" "" systemctl start $unit
call='farcall door call /run/farcall/upper hello'
is "another user's call is answered" HELLO as caller "$call"
is "it runs, and says what it does" "active running 5 names are served" \
  show ActiveState SubState StatusText
user=$(stat -c %u /run/farcall)
is "channels have the number of its user" HELLO as caller "farcall channel send $user/upper hello"
like "root asks it without a number" "bridge $(show MainPID) connected *" farcall bridge status
like "other users do not" "*EACCES (only its user and root may ask)" as caller 'farcall bridge status'
as server 'exec farcall bridge --nats nats://127.0.0.1:4222 --export door:/run/text/upper=text.other' 2>/run/text/said &
another=$!
within 60 grep served /run/text/said
like "of several bridges it wants to know which" "*several users*$user/$unit*" farcall bridge status
kill $another
like "who is not on the list is refused" "*EACCES*" as server 'farcall door call /run/farcall/slow hello'

systemctl kill -s KILL $unit
is "it is started again when it dies" "" within 60 as caller "$call"
is "and is ready then" "" within 60 systemctl is-active $unit
is "systemd has done that" 1 show NRestarts
as caller 'farcall door call /run/farcall/slow last' >/tmp/last 2>&1 &
call=$!
within 60 [ -e /run/text/called ]
is "it stops" "" systemctl stop $unit
wait $call
is "a call in progress is answered first" last cat /tmp/last
is "it has ended well" "inactive success 0" show ActiveState Result ExecMainStatus
is "and nothing is left" "" find /run -name '*farcall*'

# A drop-in, as in the guide: a user whose names others know, a secret that is root's, and a privilege.
mkdir /etc/systemd/system/$unit.service.d
cat >/etc/systemd/system/$unit.service.d/local.conf <<END
[Service]
User=caller
LoadCredential=password:/etc/farcall/password
AmbientCapabilities=CAP_SYS_NICE
END
(umask 077 && echo secret >/etc/farcall/password)
nats 4223 --user bridge --pass secret
sed -i "s|4222\"\]|4223\"]\nuser = \"bridge\"\npassword_file = \"/run/credentials/$unit.service/password\"|" $config
systemctl daemon-reload
is "it runs as another user, with a secret of root's" "" systemctl start $unit
like "and may choose priorities" "CapEff:*0000000000800000" grep CapEff "/proc/$(show MainPID)/status"
is "a channel of that user's needs no number" HELLO as caller 'farcall channel send upper hello'
systemctl stop $unit
like "no system call was one too many" 0 \
  eval "journalctl -q -o cat >/run/journal.txt && grep -c status=31/SYS /run/journal.txt"
echo "# guest is through"
