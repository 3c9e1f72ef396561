package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLoadMaster(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "compatibility_level = 3.6\ndefault_process_limit = 7\nmua = reject\n")
	services, faulty := LoadMasterString(`# comment
smtp      inet  n       -       -       -       -       smtpd
  -o syslog_name=postfix/x -o { smtpd_client_restrictions = permit_mynetworks, $mua }
# inside
  -v
[::1]:10025 inet n - y - 0 smtpd
pickup unix n - - 60 1 pickup
flush unix n - - 1000? 0 flush
mailer unix - n n - 3 pipe
  flags=DRhu user=vmail:vmail argv=/bin/x {-d x} ${recipient} -o y
postlog unix-dgram n - n - 1 postlogd
pickup unix n - - 30 1 pickup
`, c)
	if len(faulty) > 0 {
		t.Fatal(faulty)
	}
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	if want := []string{"smtp", "[::1]:10025", "pickup", "flush", "mailer", "postlog"}; !slices.Equal(names, want) {
		t.Fatalf("services %q, want %q", names, want)
	}
	smtp := services[0]
	if smtp.Private || !smtp.Unprivileged || smtp.Chroot || smtp.MaxProc != 7 || smtp.Line != 2 || smtp.Command != "smtpd" {
		t.Errorf("smtp = %+v", smtp)
	}
	if want := []Override{{"syslog_name", "postfix/x"}, {"smtpd_client_restrictions", "permit_mynetworks, $mua"}}; !slices.Equal(smtp.Overrides(), want) {
		t.Errorf("smtp's overrides = %q, want %q", smtp.Overrides(), want)
	}
	if !services[1].Chroot || services[1].MaxProc != 0 {
		t.Errorf("[::1]:10025 = %+v, want chroot and no limit", services[1])
	}
	if p := services[2]; p.Wakeup != 30*time.Second || p.WakeupLazy || p.Replaces != 7 {
		t.Errorf("pickup = %+v, want the later entry, which replaces that of line 7", p)
	}
	if f := services[3]; f.Wakeup != 1000*time.Second || !f.WakeupLazy || f.Private {
		t.Errorf("flush = %+v", f)
	}
	mailer := services[4]
	if want := []string{"flags=DRhu", "user=vmail:vmail", "argv=/bin/x", "-d x", "${recipient}", "-o", "y"}; !slices.Equal(mailer.Args, want) {
		t.Errorf("mailer's arguments = %q, want %q", mailer.Args, want)
	}
	if mailer.Unprivileged || !mailer.Private || len(mailer.Overrides()) != 0 {
		t.Errorf("mailer = %+v: its -o is an argument of its program", mailer)
	}
	if w := services[2].Warnings(c); len(w) != 1 || !strings.Contains(w[0], "master.cf:12: service pickup/unix replaces the entry of line 7") {
		t.Errorf("warnings of pickup: %q", w)
	}
}

func TestChrootDefault(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]bool{"0": true, "1": false, "2": false, "3.6": false} {
		services, faulty := LoadMasterString("a unix - - - - - smtp", mustLoad(t, "compatibility_level = "+level))
		if len(faulty) > 0 {
			t.Fatal(faulty)
		}
		if services[0].Chroot != want {
			t.Errorf("level %s: - means chroot %v, want %v", level, services[0].Chroot, want)
		}
	}
}

func TestMasterErrors(t *testing.T) {
	t.Parallel()
	services, faulty := LoadMasterString(`fine unix - - n - - smtpd
short unix - - n
type tcp - - n - - smtp
priv inet y - n - - smtpd
priv2 unix x - n - - smtpd
unpriv unix - 1 n - - smtpd
chroot unix - - maybe - - smtpd
wake unix - - n ? - smtpd
max unix - - n - many smtpd
cmd unix - - n - - /bin/smtpd
brace unix - - n - - smtpd -o { a = b
opt unix - - n - - smtpd -o
opt2 unix - - n - - smtpd -o name
opt3 unix - - n - - smtpd -o a=$
replaced unix - - n - - smtpd
replaced unix - - n - - smtpd -o
word
last inet n - n - - smtpd
`, mustLoad(t, ""))
	if len(services) != 2 || services[0].Name != "fine" || services[1].Name != "last" {
		t.Errorf("services %+v, want fine and last", services)
	}
	if len(faulty) < 2 || faulty[0].Name != "short" || faulty[0].Type != "unix" || faulty[1].Type != "tcp" || faulty[len(faulty)-1].Type != "" {
		t.Errorf("faulty %+v", faulty)
	}
	want := []string{
		"master.cf:2: expected 8 fields (name type private unpriv chroot wakeup maxproc command), the wakeup time is missing",
		"master.cf:3: service type: type tcp: expected inet, unix, fifo, pass or unix-dgram",
		"master.cf:4: service priv/inet: private y: expected n, as anybody can reach an inet service",
		"master.cf:5: service priv2/unix: private x: expected y, n or -",
		"master.cf:6: service unpriv/unix: unprivileged 1: expected y, n or -",
		"master.cf:7: service chroot/unix: chroot maybe: expected y, n or -",
		"master.cf:8: service wake/unix: wakeup ?: expected a number of seconds, with ? if only after first use, or -",
		"master.cf:9: service max/unix: process limit many: expected a number, 0 for no limit, or -",
		"master.cf:10: service cmd/unix: command /bin/smtpd: expected the name of a program without a directory",
		`master.cf:11: service brace/unix: expected a } to close "{ a = b"`,
		"master.cf:12: service opt/unix: expected name=value after -o",
		`master.cf:13: service opt2/unix: -o name: expected name = value, found "name"`,
		`master.cf:14: service opt3/unix: -o a=$: expected a name after the $ in "$" (write $$ for a dollar sign)`,
		"master.cf:16: service replaced/unix: expected name=value after -o",
		"master.cf:17: expected 8 fields (name type private unpriv chroot wakeup maxproc command), the type is missing",
	}
	if got := strings.Split(JoinLineErrors(faulty).Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("errors:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A line that continues nothing is passed over, as with Postfix, and warned of.
func TestMasterOrphan(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	services, faulty := LoadMasterString("# services\n  smtp inet n - n - - smtpd -o a=b\n  -o c=d\nqmgr unix n - n 300 1 qmgr\npickup unix n - n 60 1 pickup\n", c)
	if len(faulty) > 0 || len(services) != 2 || services[0].Name != "qmgr" {
		t.Fatalf("%+v, %v", services, faulty)
	}
	want := []string{`master.cf:2: logical line must not start with whitespace: "  smtp inet n - n - - smtpd -o..."`}
	if got := services[0].Warnings(c); !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	if got := services[1].Warnings(c); len(got) != 0 {
		t.Errorf("warnings of the second: %q", got)
	}
}

func FuzzMaster(f *testing.F) {
	f.Add("smtp inet n - n - - smtpd -o a=b\n  -o { c = d e }\n")
	f.Add("a unix - - - 60? 0 pipe argv={x y} {z}\n#\n b")
	f.Add(" x\n{ } { } { } } {")
	c := mustLoad(f, "compatibility_level = 2")
	f.Fuzz(func(t *testing.T, text string) {
		services, _ := LoadMasterString(text, c)
		// What was read can be written and read again.
		for _, s := range services {
			s.Overrides()
			s.Warnings(c)
			line := strings.Join(s.Fields[:7], " ") + " " + s.Command + " " + JoinArgs(s.Args)
			again, faulty := LoadMasterString(line, c)
			if len(faulty) > 0 {
				t.Fatalf("%q came out as %q: %v", text, line, faulty)
			}
			if len(again) != 1 || !slices.Equal(again[0].Args, s.Args) || again[0].Command != s.Command {
				t.Fatalf("%q came out as %q with arguments %q", s.Args, line, again[0].Args)
			}
		}
	})
}
