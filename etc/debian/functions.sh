# What inside.sh and systemd.sh do again and again.

# run shows a command and carries it out.
run() {
	echo "# $*"
	"$@"
}

say() { printf '\n==== %s\n' "$*"; }

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

# at_end shows the end of the log when something failed.
at_end() {
	status=$?
	[ $status != 0 ] || return 0
	sleep 2
	if [ -d /run/systemd/system ]; then journalctl -n 60 --no-pager; else tail -60 /var/log/mail.log; fi >&2 || true
	exit $status
}
trap at_end EXIT

# until_true waits for a command to succeed. Only what fails has it wait for minutes.
until_true() {
	what=$1
	shift
	for _ in $(seq 1800); do
		if "$@" >/dev/null 2>&1; then return; fi
		sleep 0.1
	done
	fail "waited in vain: $what"
}

# as runs a shell command as a user.
as() { HOME=/home/$1 setpriv --reuid "$1" --regid "$1" --init-groups sh -c "$2"; }

# queue counts the messages in it.
queue() { postqueue -j | wc -l; }
queue_is() { [ "$(queue)" = "$1" ]; }

# over_smtp sends a message to a recipient as a program on this machine does.
over_smtp() {
	perl -MIO::Socket::INET -e '
		my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:25", Timeout => 180) or die "connect: $!";
		for my $line ("", "EHLO c.example", "MAIL FROM:<a\@example.org>", "RCPT TO:<$ARGV[0]>", "DATA", "Subject: over SMTP\r\n\r\ntext\r\n.", "QUIT") {
			print $s "$line\r\n" if $line ne "";
			my $reply;
			do { $reply = <$s> // die "lost connection" } while $reply =~ /^\d\d\d-/;
			die "$line: $reply" if $reply !~ /^[23]/;
		}' "$1"
}

# mailbox reports whether a text is in the mailbox of a user.
mailbox() { grep -q -- "$2" "/var/mail/$1"; }

# set_gid reports whether the two programs with a group's rights have them.
set_gid() {
	for program in /usr/sbin/postdrop /usr/sbin/postqueue; do
		[ "$(stat -c '%U:%G %a' $program)" = "root:postdrop 2755" ] || fail "$program: $(stat -c '%U:%G %a' $program)"
	done
}
