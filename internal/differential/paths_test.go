package differential

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/testport"
	"posthaste/internal/testpostfix"

	"golang.org/x/tools/txtar"
)

// pathMain lets every MAIL succeed, and has its address in the log.
const pathMain = `smtpd_delay_reject = no
smtpd_sender_restrictions = warn_if_reject reject
`

// Where a path is judged otherwise than by Postfix 3.7.11 with
// strict_rfc821_envelopes = no, and why. docs/smtpd.md says it too.
const (
	twoReadings = "another program would read another address"
	noAddress   = "a source route, or a comment, without an address"
	unbalanced  = "brackets or parentheses do not match"
	anyName     = "names of hosts are judged by restrictions"
)

var otherPaths = map[string]string{
	"a@b.test>": unbalanced, "<a@[1.2.3.4>": unbalanced, "<(a@b.test>": unbalanced,
	"<a@b@c.test>": twoReadings, "<a:b@c.test>": twoReadings, "<x:a@b.test;>": twoReadings, "<@x.test:@y.test:a@b.test>": twoReadings,
	"<mailto:a@b.test>": twoReadings, `<a@b\.test>`: twoReadings, "<a;>": twoReadings, ":<a@b.test>": twoReadings, "<:>": twoReadings,
	"<,a@b.test>": twoReadings, "<a@b.test,>": twoReadings,
	"<@b.test>": noAddress, "()": noAddress, "<@x.test:>": noAddress, ";": noAddress,
	"<a@b..test>": anyName, "<a@.b.test>": anyName, "<a@-b.test>": anyName, "<a@#123>": anyName, "'a@b.test'": anyName, "<'a@b.test'>": anyName,
}

var samePaths = []string{
	"<a@b.test>", "a@b.test", "<<a@b.test>>", "<<<a@b.test>>>", "<a@b.test>x", "<a@b.test", "<a@>", "<a b@c.test>", `<"a b"@c.test>`, `<""@b.test>`,
	"<(comment)a@b.test>", "<a@b.test(comment)>", "<a(comment)@b.test>", "<(a (b) c) a@b.test>", "< a@b.test >", "<a @ b.test>",
	"<a@ b.test>", "a @b.test", "Joe<a@b.test>", "Joe <a@b.test>", `"Joe"<a@b.test>`, "(x)<a@b.test>", "<a@b.test>(x)", "<>", "<<>>", "< >", "", " ",
	"<()>", "<a@b.test,c@d.test>", "<a@b.test><c@d.test>", "a@b.test,c@d.test", "<a;b@c.test>", "<@x.test:a@b.test>", "<@x.test,@y.test:a@b.test>",
	"@x.test:a@b.test", "<a@[1.2.3.4]>", "<a@b]>", "<a[b@c.test>", `<a\ b@c.test>`, `<a\@b@c.test>`, `<"a@b"@c.test>`, `<"a\"b"@c.test>`,
	`<"a>b"@c.test>`, `<"a@b.test>`, `<a"b@c.test>`, `<a"b c"d@c.test>`, `<"a"."b"@c.test>`, `<a."b"@c.test>`, "<.a@b.test>", "<a.@b.test>",
	"<a..b@c.test>", "<a@b.test.>", "<a@b_c.test>", "<a%b@c.test>", "<a!b>", "<a!b@c.test>", "<a%b>", "<a>", `<"a b">`, "<a<b@c.test>", "<a>b@c.test>",
	"<a@b.test >", "<\ta@b.test>", "<a@b.test> <c@d.test>", "<a@b.test>SIZE=1", "<a@b.test> SIZE=1", "a@b.test SIZE=1", "<a@b.test:25>",
	"<a@b(c)d.test>", `<a\>@b.test>`, "[a@b.test]", "<a@b.test\x01>", "<a;@b.test>", `<a@b.test\>`, `<\>`, "<a(b)c@d.test>", "<a@(c)[1.2.3.4]>",
}

// The original takes and refuses the same forms of addresses, and gets the same
// addresses out of them, but for those that are listed.
func TestPathsLikePostfix(t *testing.T) {
	t.Parallel()
	testpostfix.Need(t)
	p := testpostfix.New(t)
	p.Port = testport.Free(t)
	s := &system{t: t, original: p, dir: p.Dir, port: p.Port}
	p.Configure(s.layOut(&txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte(pathMain)}}}))
	p.Start()
	c := &pathClient{t: t, p: p}
	c.connect()
	for form, why := range otherPaths {
		theirs, ours := c.ask(form), ask(form)
		if theirs == ours {
			t.Errorf("%q: both say %s: it is not true that it is judged otherwise because %s", form, ours, why)
		}
	}
	for _, form := range samePaths {
		if theirs, ours := c.ask(form), ask(form); theirs != ours {
			t.Errorf("%q: Postfix says %s, we say %s", form, theirs, ours)
		}
	}
}

// ask says what we make of a path: an address in external form, or a reply.
func ask(form string) string {
	m, refusal := smtpwire.ParseMail("FROM:"+form, 0, false)
	if refusal != nil {
		return refusal.String()
	}
	return "<" + rfc5322.Quote(m.From.Address) + ">"
}

// pathClient asks the original.
type pathClient struct {
	t    *testing.T
	p    *testpostfix.Instance
	conn net.Conn
	r    *bufio.Reader
}

func (c *pathClient) connect() {
	c.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", c.p.Port))
		if err == nil {
			c.conn = conn
			break
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
	c.t.Cleanup(func() { c.conn.Close() })
	c.conn.SetDeadline(time.Now().Add(patience))
	c.r = bufio.NewReader(c.conn)
	c.say("")
	c.say("EHLO client.test")
}

// say sends a line, if there is one, and returns the last line of the reply.
func (c *pathClient) say(line string) string {
	c.t.Helper()
	if line != "" {
		fmt.Fprintf(c.conn, "%s\r\n", line)
	}
	for {
		reply, err := c.r.ReadString('\n')
		if err != nil {
			c.t.Fatalf("%v\n%s", err, c.p.Log())
		}
		if len(reply) < 4 || reply[3] != '-' {
			return strings.TrimRight(reply, "\r\n")
		}
	}
}

// ask is as the function of that name. The address is in the log.
func (c *pathClient) ask(form string) string {
	c.t.Helper()
	logged := len(c.p.Log())
	reply := c.say("MAIL FROM:" + form)
	if c.say("RSET"); !strings.HasPrefix(reply, "250") {
		return reply
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, after, ok := strings.Cut(c.p.Log()[logged:], "; from="); ok {
			if address, _, ok := strings.Cut(after, " proto="); ok {
				return address
			}
		}
		if time.Now().After(end) {
			c.t.Fatalf("%q: its address is not logged\n%s", form, c.p.Log()[logged:])
		}
	}
}
