package smtpwire

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"

	"posthaste/internal/dsn"
)

// These are the known differences between the arguments of MAIL and RCPT that are taken here, with
// strict_rfc821_envelopes, and those that go-smtp takes. Each has an example, for which the two do differ.
// Octets that are not printable ASCII are not compared: go-smtp takes all of them.
var knownArguments = []struct {
	why      string
	is       func(args string) bool
	examples []string
}{
	{"go-smtp takes a path without brackets", matches(`(?i)^[A-Z]+:\s*[^\s<]`), []string{"MAIL FROM:a@b", "RCPT TO:a@b"}},
	{"only here an address needs no domain, as <postmaster>", matches(`^[^@]*(>|$)`), []string{"MAIL FROM:<postmaster>", "RCPT TO:<root>"}},
	{"here a local part in quotes needs no domain, whatever is in it", matches(`"\s*>`), []string{`MAIL FROM:<"a@b">`}},
	{"go-smtp takes any domain, with specials and further @", matches(`@[^>]*[][@()<:;,"\\]`), []string{"MAIL FROM:<a@b(c)>", "MAIL FROM:<a@b@c>", "RCPT TO:<a@[b>"}},
	{"go-smtp takes parameters that follow the path at once", matches(`>[^\s]`), []string{"MAIL FROM:<a@b>SIZE=1"}},
	{"here blanks are allowed within the brackets", matches(`<\s|\s>`), []string{"MAIL FROM:< a@b >"}},
	{"go-smtp drops a value behind SMTPUTF8 and REQUIRETLS", matches(`(?i)\s(SMTPUTF8|REQUIRETLS)=`), []string{"MAIL FROM:<a@b> SMTPUTF8=1"}},
	{"go-smtp takes no size from 2^32 on", matches(`(?i)SIZE=\d{10}`), []string{"MAIL FROM:<a@b> SIZE=4294967296"}},
	{"go-smtp takes a parameter twice, and looks at the last", hasTwice, []string{"MAIL FROM:<a@b> RET=FULL RET=FULL", "MAIL FROM:<a@b> SIZE= SIZE=0"}},
	{"go-smtp has no bound on ENVID and ORCPT", matches(`(?i)(ENVID|ORCPT)=\S{101}`), []string{"MAIL FROM:<a@b> ENVID=" + strings.Repeat("x", 101)}},
	{"what AUTH vouches for must be a mailbox in go-smtp; it is not used here", matches(`(?i)\sAUTH=`), []string{"MAIL FROM:<a@b> AUTH=x"}},
	{"go-smtp knows ORCPT of two types", matches(`(?i)\sORCPT=`), []string{"RCPT TO:<a@b> ORCPT=x400;c"}},
	{"go-smtp takes any address as long as the line, and the empty one in quotes", matches(`@\S{256}|<.{1000}|<""`), []string{"MAIL FROM:<a@" + strings.Repeat("x", 256) + ">"}},
	{"go-smtp ends a source route at the first colon, and takes quotes in it", matches(`(?i)^[A-Z]+:\s*<\s*@`), []string{`MAIL FROM:<@"a:b@c>`}},
	{"go-smtp takes a backslash at the end of quotes for one in them", matches(`\\"`), nil},
}

func matches(expr string) func(string) bool { return regexp.MustCompile(expr).MatchString }

// hasTwice says whether a parameter is given twice.
func hasTwice(args string) bool {
	seen := map[string]bool{}
	for word := range strings.FieldsSeq(args) {
		name, _, _ := strings.Cut(strings.ToUpper(word), "=")
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

// FuzzArgumentsLikeOthers: what go-smtp's server takes as the arguments of MAIL and RCPT, and what it takes them for,
// is the same here, but for the known differences.
func FuzzArgumentsLikeOthers(f *testing.F) {
	for _, k := range knownArguments {
		for _, line := range k.examples {
			f.Add(line)
		}
	}
	for _, line := range []string{"MAIL FROM:<>", "mail from: <a@b> SIZE=1 BODY=8BITMIME", `MAIL FROM:<"a b\""@c> RET=HDRS ENVID=x SMTPUTF8`, "RCPT TO:<a@[192.0.2.1]> NOTIFY=SUCCESS,DELAY", "RCPT TO:<@x,@y:a@b>", "RCPT TO:<>",
		"RCPT TO:<a@b> NOTIFY=NEVER", "MAIL FROM:<a.b.@c> BODY=7BIT", "MAIL FROM:<a@b> BODY=BINARYMIME", "RCPT TO:<a@b> NOTIFY=NEVER,DELAY"} {
		f.Add(line)
	}
	other := newOther(f)
	f.Fuzz(func(t *testing.T, line string) {
		verb, args, _ := strings.Cut(line, " ")
		if verb = strings.ToUpper(verb); verb != "MAIL" && verb != "RCPT" || !printableASCII(line) || len(line) > 1800 {
			return
		}
		args = strings.TrimSpace(args)
		ours, theirs := readHere(verb, args), other.read(t, verb+" "+args)
		if ours == theirs {
			return
		}
		for _, k := range knownArguments {
			if k.is(args) {
				return
			}
		}
		t.Fatalf("%s %s\nhere it is    %s\nin go-smtp it is %s", verb, args, ours, theirs)
	})
}

// TestKnownArguments: each of the known differences is one.
func TestKnownArguments(t *testing.T) {
	t.Parallel()
	other := newOther(t)
	for _, k := range knownArguments {
		for _, line := range k.examples {
			verb, args, _ := strings.Cut(line, " ")
			if !k.is(args) {
				t.Errorf("%s: %.80q is no example", k.why, line)
			}
			if ours, theirs := readHere(verb, args), other.read(t, line); ours == theirs {
				t.Errorf("%s: %.80q is %s for both", k.why, line, ours)
			}
		}
	}
}

func printableASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// readHere is what we read in the arguments of a command.
func readHere(verb, args string) string {
	if verb == "MAIL" {
		m, refusal := ParseMail(args, ExtDSN|ExtSMTPUTF8|ExtRequireTLS, true)
		if refusal != nil {
			return "refused"
		}
		body := map[Body]string{Body7Bit: "7BIT", Body8BitMIME: "8BITMIME"}[m.Body]
		return fmt.Sprintf("<%s> size %d body %s ret %s envid %q utf8 %v tls %v", m.From.Address, m.Size, body, m.Ret, m.EnvID, m.SMTPUTF8, m.RequireTLS)
	}
	r, refusal := ParseRcpt(args, ExtDSN, true)
	if refusal != nil {
		return "refused"
	}
	return fmt.Sprintf("<%s> notify %s orcpt %s", r.To.Address, r.Notify, r.ORCPT)
}

// An other is go-smtp's server, which notes what it has read.
type other struct {
	conns chan net.Conn
	noted chan string
}

func newOther(t testing.TB) *other {
	o := &other{conns: make(chan net.Conn), noted: make(chan string, 1)}
	srv := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return session{o.noted}, nil }))
	srv.EnableDSN, srv.EnableSMTPUTF8, srv.EnableREQUIRETLS, srv.ErrorLog = true, true, true, log.New(io.Discard, "", 0)
	done := make(chan struct{})
	go func() { srv.Serve(o); close(done) }()
	t.Cleanup(func() { srv.Close(); close(o.conns); <-done })
	return o
}

func (o *other) Accept() (net.Conn, error) {
	c, ok := <-o.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (o *other) Close() error   { return nil }
func (o *other) Addr() net.Addr { return &net.UnixAddr{} }

// read is what it makes of a command.
func (o *other) read(t testing.TB, command string) string {
	client, server := net.Pipe()
	defer client.Close()
	o.conns <- server
	r := bufio.NewReader(client)
	say := func(line string) (reply string) {
		if line != "" {
			if _, err := io.WriteString(client, line+"\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		for {
			reply, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if len(reply) < 4 || reply[3] != '-' {
				return reply
			}
		}
	}
	say("")
	say("EHLO x")
	if strings.HasPrefix(command, "RCPT") {
		say("MAIL FROM:<>")
		<-o.noted
	}
	if reply := say(command); reply[0] != '2' {
		return "refused"
	}
	return <-o.noted
}

type session struct{ noted chan string }

func (s session) Mail(from string, m *smtp.MailOptions) error {
	s.noted <- fmt.Sprintf("<%s> size %d body %s ret %s envid %q utf8 %v tls %v", from, m.Size, m.Body, m.Return, m.EnvelopeID, m.UTF8, m.RequireTLS)
	return nil
}

func (s session) Rcpt(to string, r *smtp.RcptOptions) error {
	var words []string
	for _, n := range r.Notify {
		words = append(words, string(n))
	}
	notify, _ := dsn.ParseNotify(strings.Join(words, ","))
	orcpt := ""
	if r.OriginalRecipient != "" {
		orcpt = strings.ToLower(string(r.OriginalRecipientType)) + ";" + r.OriginalRecipient
	}
	s.noted <- fmt.Sprintf("<%s> notify %s orcpt %s", to, notify, orcpt)
	return nil
}

func (s session) Data(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
func (s session) Reset()                 {}
func (s session) Logout() error          { return nil }
