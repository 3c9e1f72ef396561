package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testusers"
	"posthaste/internal/testwait"
	"posthaste/local/macro"
	"posthaste/local/pipe"
	"posthaste/local/users"
	"posthaste/local/virtual"
)

func TestMain(m *testing.M) { os.Exit(testusers.Main(m)) }

// TestLikePostfix delivers the same mail to the same aliases, .forward files
// and commands by Postfix's local, virtual and pipe and by ours, and compares
// log lines and files.
func TestLikePostfix(t *testing.T) {
	p := newPostfix(t)
	for _, tt := range differential {
		t.Run(strings.ReplaceAll(tt.to, "/", "_"), func(t *testing.T) {
			theirs, theirFiles := p.theirs(t, tt)
			ours, ourFiles := p.ours(t, tt)
			if theirs != ours {
				t.Errorf("outcome\nPostfix: %s\nours:    %s", theirs, ours)
			}
			if theirFiles != ourFiles {
				t.Errorf("files\nPostfix:\n%s\nours:\n%s", theirFiles, ourFiles)
			}
		})
	}
}

// A comparison is one message to one recipient.
type comparison struct {
	to       string            // local part, or an address at v.test (virtual) or p.test (pipe)
	pipe     string            // attributes of the pipe transport
	settings string            // of main.cf
	forward  map[string]string // .forward files to make, name below the home of phtest1 and content
	prepare  string            // shell command, in the directory
	content  string            // "" is an ordinary message
}

const differentialAliases = `
one: phtest1
chain: one
self: self
phtest2: \phtest2
two: phtest1, phtest2
null: /dev/null
file: %DIR%/pub/file
filedir: %DIR%/pub/box/
execfile: %DIR%/pub/exec
linkfile: %DIR%/pub/link
hardfile: %DIR%/pub/hard
dirfile: %DIR%/pub
nodir: /nonexistent/file
cmd: "|cat > %DIR%/pub/out"
env: "|env > %DIR%/pub/out; pwd >> %DIR%/pub/out; id -u >> %DIR%/pub/out; id -g >> %DIR%/pub/out; umask >> %DIR%/pub/out"
plain: "|/usr/bin/tee -a %DIR%/pub/out"
fail64: "|exit 64"
fail67: "|echo who is that; exit 67"
fail75: "|echo later; echo or not; exit 75"
fail1: "|exit 1"
fail99: "|echo hm; exit 99"
failcode: "|echo 5.7.9 custom text; exit 1"
failtemp: "|echo 4.7.9 custom; exit 78"
killed: "|kill -9 $$"
missing: "|/no/such/program arg"
deaf: "|true"
tilde: ~/x
inc: :include:%DIR%/members
incworld: :include:%DIR%/world
owned-list: phtest1
owner-owned-list: phtest2
inccmd: :include:%DIR%/cmds
increl: :include:members
incnone: :include:/nonexistent
ext+a: phtest1
ext: phtest2
badsyntax: "a b"@
loop1: loop2
loop2: loop1
ring1: ring2
ring2: ring3
ring3: ring1
incloop: :include:%DIR%/looping
tree: inc2, chain, phtest2
inc2: :include:%DIR%/nested
inc1owned: :include:%DIR%/owned
owned-fail: "|exit 67", phtest1
owner-owned-fail: listowner@far.test
owned-in-place: phtest1, "|cat > %DIR%/pub/out; echo $SENDER >> %DIR%/pub/out"
owner-owned-in-place: phtest2+owner
ownedmissing: nosuchuser, phtest1
filetwice: %DIR%/pub/file, %DIR%/pub/file
cmdtwice: "|cat >> %DIR%/pub/out", "|cat >> %DIR%/pub/out"
upper: PHTEST1, phtest1
remote: someone@elsewhere.test
mixed: phtest1, someone@elsewhere.test, "|cat > %DIR%/pub/out"
dotdot: %DIR%/pub/../pub/file
quoted: "%DIR%/pub/with space"
comment: phtest1 (a comment), "Full Name" <phtest2@mx.example.test>
postmaster: phtest1
extensions: phtest1+a, phtest1+b
far-list: Someone@Elsewhere.test, :include:%DIR%/faraway, phtest1
owner-far-list: phtest2+owner
outer: inner
owner-outer: phtest2+outer
inner: phtest1, someone@elsewhere.test, "|cat > %DIR%/pub/out"
pwd: "|pwd > %DIR%/pub/out"
inctemp: :include:%DIR%/temporary
`

// longName is longer than a file's name can be.
var longName = strings.Repeat("long", 70)

// others are the transports that mailboxes are passed to. ppass adds who was
// told of.
var others = map[string]string{
	"ppass": "user=phtest1 flags=FR argv=/bin/sh -c {{ echo $1 $2 $3 $4; cat; } >> %DIR%/home/passed} sh ${recipient} ${original_recipient} ${nexthop} ${sender}",
	"ptemp": "user=phtest1 argv=/bin/sh -c {exit 75}",
	"pgone": "user=phtest1 argv=/bin/sh -c {exit 67}",
	"smtp":  farAway,
}

var differential = []comparison{
	{to: "phtest1"}, {to: "PHTest1"}, {to: "phtest1+x"}, {to: "phtest1+a+b"}, {to: "nosuchuser"}, {to: "nosuchuser+x"},
	{to: "one"}, {to: "chain"}, {to: "chain+x"}, {to: "self"}, {to: "phtest2"}, {to: "two"}, {to: "null"}, {to: "file"}, {to: "filedir"},
	{to: "execfile", prepare: "touch pub/exec; chmod 777 pub/exec"}, {to: "linkfile", prepare: "touch pub/t; chmod 666 pub/t; ln -s t pub/link"},
	{to: "hardfile", prepare: "touch pub/t; chmod 666 pub/t; ln pub/t pub/hard"}, {to: "dirfile"}, {to: "nodir"},
	{to: "cmd"}, {to: "env"}, {to: "env+ext`x"}, {to: "plain"}, {to: "fail64"}, {to: "fail67"}, {to: "fail75"}, {to: "fail1"}, {to: "fail99"},
	{to: "failcode"}, {to: "failtemp"}, {to: "killed"}, {to: "missing"}, {to: "deaf"}, {to: "tilde"},
	{to: "inc"}, {to: "incworld"}, {to: "inccmd"}, {to: "increl"}, {to: "incnone"}, {to: "ext+a"}, {to: "ext+b"},
	{to: "phtest1", forward: map[string]string{".forward": "\\phtest1, \"|cat > $HOME/copy\"\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "\"|env > $HOME/env; id -u >> $HOME/env\"\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "~/saved, phtest1\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "# only a comment\n\n"}},
	{to: "phtest1+x", forward: map[string]string{".forward+x": "~/x-box/\n", ".forward": "~/saved\n"}},
	{to: "phtest1", prepare: "echo /dev/null > home/.forward; chown phtest1 home/.forward; chmod 666 home/.forward"},
	{to: "phtest1", prepare: "echo /dev/null > home/.forward; chown phtest2 home/.forward"},
	{to: "phtest1", prepare: "mkdir home/.forward"},
	{to: "phtest1", settings: "home_mailbox = Maildir/"},
	{to: "phtest1", settings: "home_mailbox = Maildir/", prepare: "mkdir home/Maildir; chmod 755 home/Maildir"},
	{to: "phtest1", settings: "home_mailbox = Mailbox"},
	{to: "phtest1", settings: "home_mailbox = Mailbox\nmailbox_size_limit = 2000\nmessage_size_limit = 1500", prepare: "head -c 1990 /dev/zero > home/Mailbox; chown phtest1 home/Mailbox"},
	{to: "phtest1", settings: "home_mailbox = Mailbox", prepare: "touch home/Mailbox; chown phtest2 home/Mailbox; chmod 666 home/Mailbox"},
	{to: "phtest1", settings: "home_mailbox = Mailbox", prepare: "mkdir home/Mailbox"},
	{to: "phtest1", settings: "home_mailbox = Mailbox", prepare: "ln -s /dev/null home/Mailbox"},
	{to: "phtest1", settings: "home_mailbox = Mailbox", prepare: "touch home/o; chown phtest1 home/o; ln home/o home/Mailbox"},
	{to: "phtest1", settings: "home_mailbox = sub/dir/Mailbox"},
	{to: "phtest1", settings: "mailbox_command = cat > $HOME/cmd; env > $HOME/cmdenv"},
	{to: "phtest1", settings: "mailbox_command = exit 75"},
	{to: "phtest1", settings: "prepend_delivered_header = forward\nenable_original_recipient = no"},
	{to: "nosuchuser+e", settings: "luser_relay = phtest1+$user-$extension"},
	{to: "phtest1", settings: "mail_spool_directory = %DIR%/pub/"},
	{to: "phtest1", settings: "mail_spool_directory = /nonexistent"},
	{to: "cmd", settings: "allow_mail_to_commands = forward"}, {to: "file", settings: "allow_mail_to_files ="},
	{to: "inccmd", settings: "allow_mail_to_commands = include"},
	{to: "cmd", settings: "command_execution_directory = %DIR%/pub"}, {to: "env", settings: "command_execution_directory = $home"},
	{to: "phtest1", content: "Subject: x\nDelivered-To: PHTEST1@mx.example.test\n\nbody\n"},
	{to: "phtest1", content: "Subject: x\n\nFrom here\n>From there\n.\n..\nlast"},
	{to: "phtest1", content: "Subject: x\n"},
	{to: "cmd", content: "Subject: x\n\nFrom here\n.\n"},
	{to: "owned-list"}, {to: "owned-fail"}, {to: "owned-in-place"}, {to: "ownedmissing"},
	{to: "owned-list", settings: "owner_request_special = no"}, {to: "owned-list", settings: "expand_owner_alias = yes"},
	{to: "owned-in-place", settings: "expand_owner_alias = yes"},
	{to: "MAILER-DAEMON"}, {to: "postmaster"},
	{to: "loop1"}, {to: "ring1"}, {to: "incloop"}, {to: "tree"}, {to: "tree+x"}, {to: "inc2"}, {to: "inc1owned"}, {to: "filetwice"}, {to: "cmdtwice"}, {to: "upper"},
	{to: "remote"}, {to: "mixed"}, {to: "dotdot"}, {to: "quoted"}, {to: "comment"},
	{to: "cmdtwice", settings: "duplicate_filter_limit = 1"},
	{to: "phtest1+x/y"}, {to: "phtest1+../../home2/x", forward: map[string]string{".forward": "~/x\n"}},
	{to: "phtest1+x", settings: "propagate_unmatched_extensions =", forward: map[string]string{".forward": "phtest2\n"}},
	{to: "phtest1+x", forward: map[string]string{".forward": "phtest2\n"}},
	{to: "chain+x", settings: "propagate_unmatched_extensions = canonical"},
	{to: "phtest1", forward: map[string]string{".forward": "phtest2, someone@elsewhere.test\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "\"|exit 67\"\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "%DIR%/home2/theirs\n"}},
	{to: "phtest1", forward: map[string]string{".forward": ":include:%DIR%/home2/list\n"}, prepare: "echo /dev/null > home2/list; chown phtest2 home2/list; chmod 600 home2/list"},
	{to: "phtest1", forward: map[string]string{".forward": ":include:%DIR%/members\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "~/link\n"}, prepare: "ln -s ../home2/box home/link; touch home2/box; chown phtest2 home2/box; chmod 666 home2/box"},
	{to: "phtest1", prepare: "ln -s ../home2/secret home/.forward; echo /dev/null > home2/secret; chown phtest2 home2/secret; chmod 600 home2/secret"},
	{to: "phtest1", forward: map[string]string{".forward": "phtest1, phtest1\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "phtest1+list\n", ".forward+list": "~/list\n"}},
	{to: "phtest1+list", forward: map[string]string{".forward": "~/all\n", ".forward+list": "phtest1\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "phtest1+a, phtest1+b, phtest1+none\n", ".forward+a": "~/a\n", ".forward+b": "phtest1, ~/b\n"}},
	{to: "extensions", forward: map[string]string{".forward+a": "~/a\n", ".forward+b": "~/b\n"}},
	{to: "extensions", forward: map[string]string{".forward+a": "phtest1+b\n", ".forward+b": "phtest1+a\n"}},
	{to: "extensions", forward: map[string]string{".forward": "~/x\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "\\phtest1\n \"|cat > $HOME/ran\"\n\t~/x\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "phtest1 \"|cat > $HOME/ran\" ~/x %DIR%/home/y (comment)\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "|/bin/true phtest1\n"}}, {to: "phtest1", forward: map[string]string{".forward": "~/a %DIR%/home/b\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "<\"|cat > $HOME/ran\">, Name <~/x>\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "phtest1,\n  phtest1, \n, ,\n"}},
	{to: "phtest1", forward: map[string]string{".forward": "\"|exit 75\", ~/first\n~/second\n"}},
	{to: "inctemp", settings: "allow_mail_to_files = include\nallow_mail_to_commands = include"},
	{to: "phtest1", prepare: "echo '~/x' > home/f; chown phtest1 home/f; ln -s f home/.forward; chown -h phtest1 home/.forward"},
	{to: "REMOTE"}, {to: "PHTest1", forward: map[string]string{".forward": "someone@elsewhere.test, phtest2\n"}},
	{to: "far-list"}, {to: "far-list", settings: "owner_request_special = no"}, {to: "far-list", settings: "expand_owner_alias = yes"},
	{to: "outer"}, {to: "outer", settings: "reset_owner_alias = yes"},
	{to: "inc+x", settings: "propagate_unmatched_extensions = include, alias"}, {to: "inc+x", settings: "propagate_unmatched_extensions = alias"},
	{to: "inc+x", settings: "propagate_unmatched_extensions = include"}, {to: "far-list+x", settings: "propagate_unmatched_extensions = include, alias"},
	{to: "pwd+a`b;", prepare: "mkdir pub/a_b_; chmod 755 pub/a_b_", settings: "command_execution_directory = %DIR%/pub/$extension"},
	{to: "pwd+..", prepare: "mkdir pub/__; chmod 755 pub/__", settings: "command_execution_directory = %DIR%/pub/$extension\nexecution_directory_expansion_filter = abc"},
	{to: "pwd+a$(b)", prepare: "mkdir 'pub/a__b_'; chmod 755 'pub/a__b_'", settings: "command_execution_directory = %DIR%/pub/$extension\nexecution_directory_expansion_filter = abc"},
	{to: "env", settings: "export_environment = MAIL_CONFIG PATH=/nowhere:/bin A=b"}, {to: "env", settings: "export_environment = MAIL_CONFIG A=b PATH"},
	{to: "cmd", settings: "prepend_delivered_header = file, forward"}, {to: "file", settings: "prepend_delivered_header = command, forward"},
	{to: "mixed", settings: "prepend_delivered_header ="}, {to: "phtest1", settings: "prepend_delivered_header = command", forward: map[string]string{".forward": "phtest2, someone@elsewhere.test\n"}},
	{to: "phtest1", settings: "require_home_directory = yes", prepare: "chown root home; chmod 700 home"},
	{to: "phtest1", settings: "require_home_directory = yes\nmail_spool_directory = /tmp/none", prepare: "chown root home2; chmod 700 home2; rmdir home; ln -s home2/in home; mkdir home2/in"},
	{to: "phtest1+" + longName, forward: map[string]string{".forward": "~/got\n"}},
	{to: "phtest1", settings: "forward_path = $home/fwd-$extension, $home/.fwd", forward: map[string]string{".fwd": "~/got\n"}},
	{to: "phtest1+e", settings: "forward_path = $home/fwd-$extension, $home/.fwd", forward: map[string]string{"fwd-e": "~/got-e\n"}},
	{to: "phtest1+a`b", settings: "forward_path = $home/fwd-$extension", forward: map[string]string{"fwd-a_b": "~/got-e\n"}},
	{to: "phtest1", settings: "require_home_directory = yes", prepare: "rmdir home"},
	{to: "phtest1", settings: "mailbox_command_maps = texthash:%DIR%/cmdmap", prepare: "echo 'phtest1 cat > $HOME/by-map' > cmdmap"},
	{to: "phtest2", prepare: "echo 'phtest1 cat > $HOME/by-map' > cmdmap", settings: "mailbox_command_maps = texthash:%DIR%/cmdmap\nmailbox_command = cat > $HOME/by-command"},
	{to: "phtest1", settings: "mailbox_command = printf '%s|%s' \"$USER\" \"$EXTENSION\" > $HOME/raw"},
	{to: "phtest1", settings: "fallback_transport = ppass"}, {to: "NoSuch+X", settings: "fallback_transport = ppass:There"},
	{to: "nosuchuser", settings: "fallback_transport_maps = inline:{ nosuchuser=ppass: }"}, {to: "nosuchuser", settings: "fallback_transport = ptemp"},
	{to: "PHTest1+X", settings: "mailbox_transport = ppass"}, {to: "phtest1", settings: "mailbox_transport = pgone:x"},
	{to: "nosuchuser", settings: "mailbox_transport = ppass"}, {to: "phtest1+x", settings: "mailbox_transport_maps = inline:{ phtest1=ppass:x }"},
	{to: "two", settings: "mailbox_transport_maps = inline:{ phtest1=ppass:x }"}, {to: "chain+x", settings: "mailbox_transport = ppass"},
	{to: "phtest1", settings: "mailbox_transport = ppass", forward: map[string]string{".forward": "\\phtest1, someone@elsewhere.test\n"}},
	{to: "PHTest1", settings: "mailbox_transport = ppass", forward: map[string]string{".forward": "someone@elsewhere.test\n\\phtest1\n"}},
	{to: "phtest1+x", settings: "mailbox_transport = ppass", forward: map[string]string{".forward": "~/copy, \\phtest1, \"|cat > $HOME/ran\"\n"}},
	{to: "phtest1", settings: "mailbox_transport = ptemp", forward: map[string]string{".forward": "\\phtest1, \"|cat > $HOME/ran\"\nsomeone@elsewhere.test\n"}},
	{to: "phtest1", settings: "mailbox_transport = ptemp", forward: map[string]string{".forward": "\\phtest1\n\"|cat > $HOME/ran\"\n"}},
	{to: "phtest1", settings: "mailbox_transport = pgone", forward: map[string]string{".forward": "\"|cat > $HOME/ran\", \\phtest1, phtest2\n"}},
	{to: "nosuchuser", settings: "luser_relay = $local@elsewhere.test"}, {to: "nosuchuser", settings: "luser_relay = nosuchuser"},
	{to: "|touch %DIR%/pub/x;#", settings: "luser_relay = $user@elsewhere.test"}, {to: "|touch %DIR%/pub/x;#+y", settings: "luser_relay = $recipient@elsewhere.test"},
	{to: "|touch %DIR%/pub/x;#", settings: "luser_relay = phtest1+$user"},
	{to: "%DIR%/pub/x", settings: "luser_relay = $local@elsewhere.test"}, {to: "%DIR%/pub/", settings: "luser_relay = $local@elsewhere.test"},
	{to: ":include:%DIR%/cmds", settings: "luser_relay = $local@elsewhere.test\nallow_mail_to_commands = alias, include"},
	{to: ":include:%DIR%/cmds", settings: "luser_relay = phtest1+$local\nallow_mail_to_commands = alias, include"},
	{to: "phtest1, phtest2 ,|touch %DIR%/pub/x", settings: "luser_relay = $local@elsewhere.test"},
	{to: "phtest1, phtest2", settings: "luser_relay = phtest1+$user"}, {to: "~/x", settings: "luser_relay = $local@elsewhere.test"},
	{to: "phtest1", settings: "local_command_shell = /bin/sh -c\nmailbox_command = cat > $HOME/shell"},
	{to: "cmd", settings: "command_time_limit = 1s\nmailbox_command =", content: "Subject: x\n"},
	{to: "phtest1", settings: "command_time_limit = 1s\nmailbox_command = sleep 30"},
	{to: "phtest1", settings: "frozen_delivered_to = no", forward: map[string]string{".forward": "phtest2\n"}},
	{to: "phtest1", settings: "mailbox_delivery_lock = fcntl, dotlock"},
	{to: "phtest1", settings: "mailbox_delivery_lock = dotlock\ndeliver_lock_attempts = 1\ndeliver_lock_delay = 1s", prepare: "touch spool/phtest1.lock"},
	{to: "phtest1", settings: "strict_mailbox_ownership = no", prepare: "touch spool/phtest1; chown phtest2 spool/phtest1; chmod 666 spool/phtest1"},
	{to: "phtest1", prepare: "touch spool/phtest1; chown phtest2 spool/phtest1"},
	{to: "phtest1", prepare: "touch spool/o; chown phtest2 spool/o; ln spool/o spool/phtest1"},
	{to: "phtest1", prepare: "chmod 755 spool"}, {to: "phtest1", prepare: "chgrp mail spool; chmod 2775 spool"},
	{to: "phroot"}, {to: "phroot", settings: "home_mailbox = Maildir/"}, {to: "phroot", settings: "home_mailbox = Mailbox"},
	{to: "phroot", settings: "mailbox_command = id -u > %DIR%/pub/out"}, {to: "phroot", prepare: "echo phtest1 > home3/.forward"},
	{to: "phroot", prepare: "echo '\"|id -u > %DIR%/pub/out\"' > home3/.forward"}, {to: "phroot", prepare: "echo %DIR%/pub/file > home3/.forward"},
	{to: "phroot", prepare: "chmod 755 spool"},
	{to: "a@v.test"}, {to: "A+x@v.test"}, {to: "b@v.test"}, {to: "who@v.test"}, {to: "any@all.test"},
	{to: "a@v.test", prepare: "chmod 755 pub"}, {to: "b@v.test", prepare: "chmod 755 pub"},
	{to: "b@v.test", prepare: "touch pub/v-b; chmod 666 pub/v-b"}, {to: "b@v.test", prepare: "mkdir pub/v-b"},
	{to: "b@v.test", prepare: "touch pub/t; chmod 666 pub/t; ln -s t pub/v-b; chown -h phtest2 pub/v-b"},
	// Rules with $1, and servers, have no say in what is run and as whom.
	{to: "phtest1", settings: "alias_maps = regexp:%DIR%/rules", prepare: `printf '/(.*)/ "|cat > %DIR%/pub/out; echo $1"\n/^phtest1/ phtest2\n' > rules`},
	{to: "phtest1", settings: "alias_maps = unionmap:{proxy:regexp:%DIR%/rules}", prepare: `printf '/(.*)/ phtest2, $1\n' > rules`},
	{to: "phtest1", settings: "alias_maps = regexp:%DIR%/rules", prepare: `printf '/(.*)/ "|echo $$1 > %DIR%/pub/out"\n' > rules`},
	{to: "phtest1", settings: "mailbox_command_maps = regexp:%DIR%/rules", prepare: `printf '/(.*)/ echo $1 > %DIR%/pub/out\n' > rules`},
	{to: "a@v.test", settings: "virtual_mailbox_maps = regexp:%DIR%/rules", prepare: `printf '/(.*)@/ $1/\n/a/ other/\n' > rules`},
	{to: "phtest1", settings: "alias_maps = tcp:127.0.0.1:9"}, {to: "phtest1", settings: "alias_maps = socketmap:inet:127.0.0.1:9:x"},
	{to: "phtest1", settings: "mailbox_command_maps = tcp:127.0.0.1:9"}, {to: "a@v.test", settings: "virtual_gid_maps = socketmap:inet:127.0.0.1:9:x"},
	{to: "a@v.test", settings: "virtual_uid_maps = static:5"}, {to: "a@v.test", settings: "virtual_gid_maps = static:0"},
	{to: "b@v.test", content: "Subject: x\nDelivered-To: b@v.test\n\nbody\n"},
	{to: "b@v.test", content: "Subject: x\n\nFrom here\n"},
	{to: "x+y@P.test", pipe: "argv=/bin/sh -c {cat > %DIR%/pub/out; env | grep -v ^MAIL_CONFIG >> %DIR%/pub/out; pwd >> %DIR%/pub/out; id -u >> %DIR%/pub/out; id -G >> %DIR%/pub/out}"},
	{to: "x+y@p.test", pipe: "flags=BDFORXhqu.> argv=/bin/sh -c {cat > %DIR%/pub/out; echo said}", content: "Subject: x\n\nFrom here\n.dot\n"},
	{to: "X+Y@p.test", pipe: `argv=/usr/bin/printf [%%s] ${recipient} $user-$extension ${mailbox} $domain $sender $nexthop ${original_recipient} ${size}`},
	{to: "X+Y@p.test", pipe: `flags=hu argv=/usr/bin/printf [%%s] ${recipient} $user-$extension ${mailbox} $domain $sender $nexthop $$ {a b}`},
	{to: "x@p.test", pipe: "flags=D argv=/bin/true", content: "Subject: x\nDelivered-To: X@p.test\n\n"},
	{to: "x@p.test", pipe: "size=10 argv=/bin/true"}, {to: "x@p.test", pipe: "argv=/bin/sh -c {echo no; exit 67}"},
	{to: "x@p.test", pipe: "argv=/bin/sh -c {exit 75}"}, {to: "x@p.test", pipe: "argv=/bin/sh -c {echo 5.7.7 custom; exit 1}"},
	{to: "x@p.test", pipe: "argv=/bin/sh -c {exit 3}"}, {to: "x@p.test", pipe: "eol=\\r\\n flags=FR null_sender=nobody argv=/bin/sh -c {cat > %DIR%/pub/out}"},
	{to: "x@p.test", pipe: "directory=%DIR%/pub argv=/bin/pwd"}, {to: "x@p.test", pipe: "user=phtest1:daemon argv=/usr/bin/id -G"},
}

// A postfix is the original, with the users, homes and mailboxes to which both
// deliver.
type postfix struct {
	*testpostfix.Instance
	dir     string // of these
	running bool
	pipe    string // that it runs with
	size    int64  // of the last message
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func newPostfix(t *testing.T) *postfix {
	p := &postfix{Instance: testpostfix.New(t)}
	p.dir = p.Path("site")
	testusers.Add(t, "phtest1", p.path("home"))
	testusers.Add(t, "phtest2", p.path("home2"))
	testusers.AddRoot(t, "phroot", p.path("home3"))
	for _, d := range []string{"", "home", "home2", "home3"} {
		if err := os.Mkdir(p.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, p.Path("etc/aliases"), p.aliases())
	return p
}

func (p *postfix) aliases() string { return strings.ReplaceAll(differentialAliases, "%DIR%", p.dir) }

func (p *postfix) path(name string) string { return filepath.Join(p.dir, name) }

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

const differentialMain = `myhostname = mx.example.test
mydomain = example.test
myorigin = mx.example.test
mydestination = mx.example.test
recipient_delimiter = +
mail_spool_directory = %DIR%/spool
mailbox_command =
smtputf8_enable = no
notify_classes =
virtual_mailbox_domains = v.test, all.test
virtual_mailbox_maps = inline:{ a@v.test=v/a/, b@v.test=v-b, {@all.test=all/} }
virtual_mailbox_base = %DIR%/pub
virtual_uid_maps = static:60003
virtual_gid_maps = static:60003
transport_maps = inline:{ p.test=ppipe:Next.Hop }
`

// farAway is the transport of what leaves the system: it keeps it.
const farAway = `flags=R user=phtest1 argv=/bin/sh -c {{ shift; echo "$@"; cat; } >> "%DIR%/pub/far-$1"} sh ${sender} ${original_recipient} ${recipient}`

// In differentialMaster, local and virtual deliver each time by the settings
// that there are then.
const differentialMaster = `pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
local unix - n n - - local -o max_use=1
virtual unix - n n - - virtual -o max_use=1
relay unix - - n - - discard
postlog unix-dgram n - n - 1 postlogd
`

// destination is the whole address.
func (p *postfix) destination(tt comparison) string {
	if strings.Contains(tt.to, "@") {
		return tt.to
	}
	return strings.ReplaceAll(tt.to, "%DIR%", p.dir) + "@mx.example.test"
}

// pipeArgs are the words of the pipe transport's line in master.cf; braces
// group them there.
func (tt *comparison) pipeArgs(dir string) []string {
	text := tt.pipe
	if !strings.Contains(text, "user=") {
		text = "user=phtest1 " + text
	}
	return words(text, dir)
}

func words(text, dir string) []string {
	text = strings.NewReplacer("%DIR%", dir, "%%", "%").Replace(text)
	var out []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if inner, rest, ok := macro.Group(text); text[0] == '{' && ok {
			out, text = append(out, inner), rest
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		out, text = append(out, word), rest
	}
	return out
}

func (p *postfix) main(tt comparison) string {
	return strings.ReplaceAll(differentialMain+tt.settings+"\n", "%DIR%", p.dir)
}

// prepare makes everything as it is before a delivery.
func (p *postfix) prepare(t *testing.T, tt comparison) {
	t.Helper()
	for _, d := range []string{"home", "home2", "home3", "pub", "spool"} {
		os.RemoveAll(p.path(d))
		os.Mkdir(p.path(d), 0o755)
	}
	run(t, "chown", "phtest1:users", p.path("home"))
	run(t, "chown", "phtest2:users", p.path("home2"))
	os.Chmod(p.path("pub"), 0o777)
	os.Chmod(p.path("spool"), 0o1777)
	write(t, p.path("members"), "phtest1, phtest2\n# comment\n")
	write(t, p.path("world"), "phtest1\n")
	os.Chmod(p.path("world"), 0o666)
	write(t, p.path("nested"), "chain\n:include:"+p.path("members")+"\n  , nosuchuser\n")
	write(t, p.path("looping"), "incloop, phtest1\n")
	write(t, p.path("owned"), "\"|id -u > "+p.dir+"/pub/out\", phtest2\n")
	run(t, "chown", "phtest1:users", p.path("owned"))
	write(t, p.path("faraway"), "other@elsewhere.test, phtest2\n")
	write(t, p.path("temporary"), "\"|exit 75\", "+p.dir+"/pub/first\n"+p.dir+"/pub/second\n")
	write(t, p.path("cmds"), "\"|cat > "+p.dir+"/pub/out\"\n")
	for name, content := range tt.forward {
		write(t, p.path("home/"+name), strings.ReplaceAll(content, "%DIR%", p.dir))
		run(t, "chown", "phtest1:users", p.path("home/"+name))
	}
	if tt.prepare != "" {
		run(t, "/bin/sh", "-c", "cd "+p.dir+" && { "+strings.ReplaceAll(tt.prepare, "%DIR%", p.dir)+"; }")
	}
}

func (tt *comparison) message() string {
	if tt.content == "" {
		return "Received: x\nFrom: a@b\nMessage-Id: <m@b>\nDate: Fri, 20 Nov 2026 17:56:01 +0000\nSubject: x\n\nbody\n"
	}
	return "From: a@b\nMessage-Id: <m@b>\nDate: Fri, 20 Nov 2026 17:56:01 +0000\n" + tt.content
}

// files is what lies in homes, spool and the public directory: name, owner,
// mode and content.
func (p *postfix) files(t *testing.T) string {
	t.Helper()
	var out []string
	for _, top := range []string{"home", "home2", "home3", "spool", "pub"} {
		filepath.WalkDir(p.path(top), func(path string, e os.DirEntry, err error) error {
			if err != nil || path == p.path(top) {
				return err
			}
			st, err := e.Info()
			if err != nil {
				return err
			}
			owner := st.Sys().(*syscall.Stat_t)
			content := ""
			if st.Mode().IsRegular() {
				b, _ := os.ReadFile(path)
				content = p.normal(string(b))
			}
			name := maildirName.ReplaceAllString(strings.TrimPrefix(path, p.dir), "MESSAGE")
			out = append(out, fmt.Sprintf("%s %v %d:%d\n%s", name, st.Mode(), owner.Uid, owner.Gid, content))
			return nil
		})
	}
	return strings.Join(out, "\n")
}

var (
	maildirName = regexp.MustCompile(`\d{10}\.V\w+I\w+M\d+\.\S+`)
	fromLine    = regexp.MustCompile(`(?m)^From (\S+)  ... ... [ \d]\d \d\d:\d\d:\d\d \d{4}(\r?)$`)
	received    = regexp.MustCompile(`(?m)^Received: by .*\n\tid .*\n`)
	queueID     = regexp.MustCompile(`forwarded as \w+`)
	tempName    = regexp.MustCompile(`\d{10}\.(P\d+\.\w+|M\d+P\d+Q\d+\.[\w.]+)`)
	// Both try again when a program is not there, in other words.
	missingProgram = regexp.MustCompile(`temporary failure. Command output: local: fatal: execvp .*|cannot run command .*`)
	noise          = regexp.MustCompile(`(?m)^(SHLVL|_|OLDPWD|PWD|MAIL_CONFIG|LANG|TZ)=.*\n`)
)

func (p *postfix) normal(s string) string {
	s = fromLine.ReplaceAllString(s, "From $1  DATE$2")
	s = noise.ReplaceAllString(received.ReplaceAllString(s, ""), "")
	s = strings.ReplaceAll(s, p.Path("spool")+"\n", "QUEUE\n")
	if strings.Contains(s, "LOGNAME=") { // what env printed is in no order
		lines := strings.SplitAfter(s, "\n")
		slices.Sort(lines)
		s = strings.Join(lines, "")
	}
	return s
}

var delivered = regexp.MustCompile(`/(?:local|virtual|pipe)\[\d+\]: (\w+): to=<([^>]*)>.*dsn=([0-9.]+), status=(\w+) \((.*)\)$`)

// outcomes are the delivery lines of a log, in no order.
func outcomes(log string) string {
	var list []string
	for line := range strings.Lines(log) {
		m := delivered.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		text := tempName.ReplaceAllString(queueID.ReplaceAllString(m[5], "forwarded"), "TEMPORARY")
		text = strings.TrimSpace(text) // the end of a command's output
		list = append(list, fmt.Sprintf("to=<%s> %s %s (%s)", m[2], m[3], m[4], missingProgram.ReplaceAllString(text, "PROGRAM MISSING")))
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func (p *postfix) theirs(t *testing.T, tt comparison) (string, string) {
	t.Helper()
	p.prepare(t, tt)
	p.start(t, tt)
	before := len(p.Log())
	p.Run(tt.message(), "sendmail", "-i", "-f", "sender@far.test", rfc5322.Quote(p.destination(tt)))
	since := func() string { return p.Log()[before:] }
	wait(t, "Postfix has delivered", func() bool { return strings.Contains(since(), "status=") && p.quiet() })
	// Lines are on their way to the log yet; what is deferred has none that
	// comes after the others.
	id := pickedUp.FindStringSubmatch(since())[1]
	last := id + ": removed\n"
	if left, _ := filepath.Glob(p.Path("spool/deferred/*", id)); len(left) > 0 {
		last = "all is told\n"
		p.Run("", "postlog", "-t", "test", strings.TrimSpace(last))
	}
	wait(t, "Postfix has logged it all", func() bool { return strings.Contains(since(), last) })
	log := since()
	if m := sizeIs.FindStringSubmatch(log); m != nil {
		p.size, _ = strconv.ParseInt(m[1], 10, 64)
	}
	return outcomes(linesOf(log, id)), p.files(t)
}

var (
	sizeIs   = regexp.MustCompile(`, size=(\d+), `)
	pickedUp = regexp.MustCompile(`/pickup\[\d+\]: (\w+): uid=`)
)

// start has Postfix run with the settings of a comparison.
func (p *postfix) start(t *testing.T, tt comparison) {
	t.Helper()
	args := tt.pipeArgs(p.dir)
	for i := range args {
		if strings.Contains(args[i], " ") {
			args[i] = "{" + args[i] + "}"
		}
	}
	master := differentialMaster + "ppipe unix - n n - - pipe " + strings.Join(args, " ") + "\n"
	for name, args := range others {
		master += name + " unix - n n - - pipe " + args + "\n"
	}
	p.Configure("alias_maps = hash:{dir}/etc/aliases\ninet_interfaces = loopback-only\nin_flow_delay = 0\n"+p.main(tt),
		strings.ReplaceAll(master, "%DIR%", p.dir))
	switch {
	case !p.running:
		p.Run("", "postalias", "hash:"+p.Path("etc/aliases"))
		p.Start()
	case p.pipe != tt.pipe:
		p.Reload()
	}
	p.running, p.pipe = true, tt.pipe
}

// patience bounds waiting for what must happen.
const patience = testwait.Patience

// wait waits until f is true.
func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// quiet says whether the queue is empty, or has only deferred mail.
func (p *postfix) quiet() bool {
	for _, q := range []string{"maildrop", "incoming", "active"} {
		if left, _ := filepath.Glob(p.Path("spool", q, "*")); len(left) > 0 {
			return false
		}
	}
	return true
}

// linesOf is the deliveries of one message, without those of what was
// forwarded or bounced.
func linesOf(log, id string) string {
	var out []string
	for line := range strings.Lines(log) {
		if m := delivered.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == id {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func (p *postfix) ours(t *testing.T, tt comparison) (string, string) {
	t.Helper()
	p.prepare(t, tt)
	s := &site{t: t, dir: p.dir}
	var table strings.Builder
	for line := range strings.Lines(p.aliases()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			table.WriteString(name + "\t" + strings.TrimSpace(value) + "\n")
		}
	}
	write(t, p.path("table"), table.String())
	cfg, err := config.LoadString("alias_maps = texthash:" + p.path("table") + "\nmail_name = Postfix\nqueue_directory = " + p.Path("spool") + "\n" + p.main(tt))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(p.Path("spool")) // as the service does
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	s.sink = maillog.New("postfix/local", maillog.NewWriter(s, maillog.Format(0)))
	s.agent, err = newAgent(options{Config: cfg, Service: "local", Users: new(users.System), Rewriter: mxSite{s}, Submit: s.client(), Log: s.sink,
		Environ: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.agent.Close(); s.sink.Close() })
	content := strings.ReplaceAll(tt.message(), "\n", "\r\n")
	if !strings.HasSuffix(content, "\n") {
		content += "\r\n"
	}
	p.deliver(t, s, tt, cfg, content)
	far, err := pipe.New(cfg, "smtp", words(others["smtp"], p.dir), nil, s.sink)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range s.queued { // what was forwarded is delivered, as Postfix does by itself
		all := q.Envelope.Recipients
		isHere := func(r mail.Recipient) bool { return strings.HasSuffix(r.Address, "@mx.example.test") }
		q.Envelope.Recipients = slices.DeleteFunc(slices.Clone(all), func(r mail.Recipient) bool { return !isHere(r) })
		s.agent.Deliver(t.Context(), agent.NewTestRequest(q.Envelope, "mx.example.test", q.Content, nil))
		if q.Envelope.Recipients = slices.DeleteFunc(slices.Clone(all), isHere); len(q.Envelope.Recipients) > 0 {
			far.Deliver(t.Context(), agent.NewTestRequest(q.Envelope, "elsewhere.test", q.Content, nil))
		}
	}
	os.Remove(p.path("cleanup"))
	return outcomes(s.logged()), p.files(t)
}

// deliver has one of our agents deliver.
func (p *postfix) deliver(t *testing.T, s *site, tt comparison, cfg *config.Config, content string) {
	t.Helper()
	if !strings.Contains(tt.to, "@") {
		env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 7), Sender: "sender@far.test", Arrival: time.Now(), Recipients: []mail.Recipient{{Address: p.destination(tt)}}}
		r := agent.NewTestRequest(env, "mx.example.test", []byte(content), s.sink)
		r.PassBy(func(_ int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error) {
			d, err := pipe.New(cfg, string(transport), words(others[string(transport)], p.dir), nil, s.sink)
			if err != nil {
				return mail.Outcome{}, err
			}
			env.Recipients = []mail.Recipient{to}
			r := agent.NewTestRequest(env, nexthop, []byte(content), s.sink)
			d.Deliver(t.Context(), r)
			return r.Outcomes()[0], nil
		})
		s.agent.Deliver(t.Context(), r)
		return
	}
	var d agent.Deliverer
	var err error
	nexthop := mail.Nexthop("v.test")
	if tt.pipe == "" {
		d, err = virtual.New(cfg, "virtual", s.sink)
	} else {
		d, err = pipe.New(cfg, "ppipe", tt.pipeArgs(p.dir), nil, s.sink)
		nexthop = "Next.Hop"
	}
	if err != nil {
		t.Fatal(err)
	}
	env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 7), Sender: "sender@far.test", Arrival: time.Now(), Size: p.size, Recipients: []mail.Recipient{{Address: tt.to}}}
	d.Deliver(t.Context(), agent.NewTestRequest(env, nexthop, []byte(content), s.sink))
}

// mxSite resolves as the Postfix beside it.
type mxSite struct{ *site }

func (m mxSite) Rewrite(_ context.Context, _, addr string) (string, error) {
	if !strings.Contains(addr, "@") {
		addr += "@mx.example.test"
	}
	return addr, nil
}

func (m mxSite) Resolve(_ context.Context, _, addr string) (proto.ResolveReply, error) {
	r := proto.ResolveReply{Transport: "smtp", Recipient: addr}
	if strings.HasSuffix(strings.ToLower(addr), "@mx.example.test") {
		r.Transport = "local"
	}
	return r, nil
}
