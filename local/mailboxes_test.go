package local

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/rights"
	"posthaste/internal/table/postmap"
	"posthaste/local/users"
	"posthaste/local/virtual"
)

var block = regexp.MustCompile("(?ms)^```(\\S+)\n(.*?)^```$")

// TestMailboxesExample delivers by the files of docs/mailboxes.md.
func TestMailboxesExample(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/mailboxes.md")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, "", "")
	os.Chmod(s.path("spool"), 0o777)
	here := strings.NewReplacer("/etc/posthaste/", s.dir+"/", "/etc/", s.dir+"/", "/srv/vmail", s.path("vmail"),
		"/usr/local/bin/", s.dir+"/", "/usr/bin/vacation", s.path("vacation"))
	files := map[string]string{}
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		files[m[1]] = here.Replace(m[2])
	}
	for _, name := range []string{"aliases", "staff", "vmailbox", "commands"} {
		s.write(name, files[name], nil)
	}
	s.write("main.cf", files["main.cf"], nil)
	var out strings.Builder
	if code := postmap.Postalias([]string{"-c", s.dir, "hash:" + s.path("aliases")}, nil, &out, &out); code != 0 {
		t.Fatalf("postalias: %s", &out)
	}
	if code := postmap.Run("postmap", nil, []string{"-c", s.dir, "hash:" + s.path("vmailbox"), "hash:" + s.path("commands")}, nil, &out, &out); code != 0 {
		t.Fatalf("postmap: %s", &out)
	}
	for _, program := range []string{"tickets", "vacation"} {
		s.write(program, "#!/bin/sh\n{ echo \"$0 $* for $USER from $SENDER\"; cat; } > %DIR%/spool/"+program+"\n", nil)
		os.Chmod(s.path(program), 0o755)
	}
	cfg, err := config.LoadString(files["main.cf"] + "queue_directory = " + s.dir + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.agent, err = newAgent(options{Config: cfg, Service: "local", Users: s, Rewriter: s, Submit: s.agent.Submit, Log: s.sink}); err != nil {
		t.Fatal(err)
	}
	defer s.agent.Close()
	s.siteLocal(files[".forward"])
	s.siteVirtual(cfg)
}

func (s *site) siteLocal(forward string) {
	t := s.t
	s.expect(s.deliver("ann@example.org", "joe+news@example.org", "root@example.org"),
		"delivered 2.0.0 delivered to maildir", "delivered 2.0.0 delivered to maildir", "delivered 2.0.0 delivered to maildir")
	s.expect(s.deliver("nosuch@example.org"), "delivered 2.0.0 delivered to maildir")
	if got := s.maildir("home/ann/Maildir"); len(got) != 3 {
		t.Errorf("ann has %d messages", len(got))
	}
	s.expect(s.deliver("nothing@example.org"), "delivered 2.0.0 delivered to file: /dev/null")
	s.expect(s.deliver("tickets@example.org"), "delivered 2.0.0 delivered to command: %DIR%/tickets --queue support")
	if got := s.read("spool/tickets"); !strings.HasPrefix(got, "%DIR%/tickets --queue support for tickets from sender@far.test\nFrom sender@far.test ") {
		t.Errorf("%s", got)
	}
	s.expect(s.deliver("staff@example.org"), "expanded 2.0.0 forwarded as NEWID")
	var to []string
	for _, r := range s.queued[0].Envelope.Recipients {
		to = append(to, r.Address)
	}
	if got := s.queued[0].Envelope.Sender + ": " + strings.Join(to, " "); got != "owner-staff@example.org: joe@example.org ann@example.org guest@elsewhere.test" {
		t.Errorf("the list's message: %s", got)
	}
	s.forward("joe", forward)
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to maildir; delivered to command: %DIR%/vacation joe")
	if got := s.read("spool/vacation"); !strings.HasPrefix(got, "%DIR%/vacation joe for joe from sender@far.test\n") {
		t.Errorf("%s", got)
	}
}

func (s *site) siteVirtual(cfg *config.Config) {
	t := s.t
	vmail := &users.User{UID: 5000, GID: 5000}
	s.mkdir(s.path("vmail"), vmail)
	v, err := virtual.New(cfg, "virtual", s.sink)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 7), Arrival: time.Now(), Recipients: []mail.Recipient{
		{Address: "info@example.com"}, {Address: "sales@example.com"}, {Address: "anybody@example.com"}}}
	r := agent.NewTestRequest(env, "example.com", []byte(message), s.sink)
	v.Deliver(t.Context(), r)
	for _, o := range r.Outcomes() {
		if o.Status.Class != 2 {
			t.Errorf("%+v", o)
		}
	}
	if a, b := s.maildir("vmail/example.com/info"), s.maildir("vmail/example.com/rest"); len(a) != 1 || len(b) != 1 {
		t.Errorf("%q %q", a, b)
	}
	if rights.Switching() {
		if st, err := os.Stat(s.path("vmail/example.com/sales")); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v %v", st, err)
		}
	}
}

func (s *site) maildir(name string) []string {
	list, _ := filepath.Glob(s.path(name + "/new/*"))
	return list
}
