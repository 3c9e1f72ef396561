package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testpeers"
)

// A manual is a page of docs/ whose examples are carried out, section by
// section ("## "), each on a machine of its own. The blocks of a section are,
// by what follows the backquotes,
//
//	main.cf     the whole file; a second one in a section takes its place
//	master.cf   lines at the end of the file
//	NAME        a file, in /etc/posthaste unless NAME begins with a slash
//	sh          commands of root's, which must succeed
//	shell       the same, of ann's
//	console     commands after "# " (root) or "$ " (the user ann), and what they print;
//	            a lone cd or export holds for the commands of that user that follow
//	log         lines that come to be in the log
//	zone        what is in the DNS besides the manual's own zone
//
// and other blocks (ini, text) are not looked at. In what is printed and
// logged "..." stands for anything; dates, process numbers, sizes, delays and
// queue IDs are any of their kind, but the same ID on the page is the same ID in
// fact, in commands too. A comment <!-- run: COMMAND --> is a command, too, that
// the reader need not see.
type manual struct {
	page string
	// zone is what there is in the DNS.
	zone string
	// programs that the examples, or what they are tried with, need.
	programs []string
	// whole is for pages that are one example from the beginning to the end.
	whole bool
	// after are sections of other pages that are carried out before this one, on
	// the same machine: this page goes on where they end. Empty where a page
	// begins anew.
	after []docPart
	// aside are programs that run only when they are needed, between blanks.
	aside string
	// sections that need something in the world before they begin.
	before map[string]func(*testing.T, *network, *machine)
}

// A docPart is a section of a page.
type docPart struct{ page, title string }

// setUp is what start.md has done before the pages that continue it, and
// certified what site.md has besides.
var (
	setUp     = docPart{"start.md", "Say who you are"}
	certified = docPart{"site.md", "A certificate"}
)

// A docBlock is one block of a page.
type docBlock struct {
	line       int
	kind, text string
}

var docBlocks = regexp.MustCompile("(?ms)^```(\\S*)\n(.*?)^```$|^<!-- (run): (.*?) -->$|^## (.*?)$")

// sections are the blocks by section, and the titles in their order.
func (d manual) sections(t *testing.T) (titles []string, blocks map[string][]docBlock) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../../docs", d.page))
	if err != nil {
		t.Fatal(err)
	}
	blocks = map[string][]docBlock{}
	title := ""
	for _, at := range docBlocks.FindAllSubmatchIndex(page, -1) {
		group := func(n int) string {
			if at[2*n] < 0 {
				return ""
			}
			return string(page[at[2*n]:at[2*n+1]])
		}
		b := docBlock{line: strings.Count(string(page[:at[0]]), "\n") + 1, kind: group(1), text: group(2)}
		if heading := group(5); heading != "" {
			if !d.whole {
				title = heading
			}
			continue
		} else if group(3) != "" {
			b.kind, b.text = "sh", group(4)+"\n"
		}
		switch b.kind {
		case "", "ini", "text":
			continue
		}
		if blocks[title] == nil {
			titles = append(titles, title)
		}
		blocks[title] = append(blocks[title], b)
	}
	return titles, blocks
}

func (d manual) test(t *testing.T) {
	for _, p := range d.programs {
		need(t, p)
	}
	for _, program := range strings.Fields(d.aside) {
		if err := buildAside(program); err != nil {
			t.Fatal(err)
		}
	}
	titles, blocks := d.sections(t)
	for title := range d.before {
		if blocks[title] == nil {
			t.Errorf("%s has no section %q with examples", d.page, title)
		}
	}
	for _, title := range titles {
		t.Run(strings.ReplaceAll(title, " ", "_"), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, d.zone+zoneOf(blocks[title]))
			x := &example{t: t, page: d.page, machine: n.newMachine("mail.example.org"), ids: map[string]string{}}
			if d.after != nil {
				x.first(d.after)
			}
			if f := d.before[title]; f != nil {
				f(t, n, x.machine)
			}
			for _, b := range blocks[title] {
				x.do(b)
			}
			if out, status := x.machine.run("root", "posthaste status"); status == 0 {
				if out, status = x.machine.run("root", "posthaste stop"); status != 0 {
					t.Errorf("posthaste stop: %s", out)
				}
			} else if !strings.Contains(out, "not running") {
				t.Errorf("posthaste status: %s", out)
			}
			if m := regexp.MustCompile(`(?m)^.*(panic|DATA RACE|fatal):? .*$`).FindString(x.machine.log()); m != "" {
				t.Errorf("the log has %s", m)
			}
		})
	}
}

// zoneOf is what the blocks put into the DNS.
func zoneOf(blocks []docBlock) (zone string) {
	for _, b := range blocks {
		if b.kind == "zone" {
			zone += b.text
		}
	}
	return zone
}

// first carries out sections of other pages.
func (x *example) first(parts []docPart) {
	x.t.Helper()
	for _, p := range parts {
		_, blocks := manual{page: p.page}.sections(x.t)
		if blocks[p.title] == nil {
			x.t.Fatalf("%s has no section %q with examples", p.page, p.title)
		}
		y := &example{t: x.t, page: p.page, machine: x.machine, ids: map[string]string{}}
		for _, b := range blocks[p.title] {
			y.do(b)
		}
	}
	// As with a main.cf on a page: the rest of the world needs its ports.
	x.machine.must("root", "postconf -e 'inet_interfaces = 127.0.0.1, 192.0.2.1'")
}

// An example is a section that is being carried out.
type example struct {
	t       *testing.T
	page    string
	machine *machine
	ids     map[string]string // the page's queue IDs, and the real ones
	shell   map[string]string // what the shell of each user has been told by cd and export
}

// keeps matches commands that change nothing but the shell that has read them.
var keeps = regexp.MustCompile(`^(cd|export) [^;&|]+\n$`)

// typed has the shell of a user read a command. Each is a shell of its own in fact, which is told anew what the
// user's has been told.
func (x *example) typed(user, command string) (out string, status int) {
	command = x.real(command)
	if keeps.MatchString(command) {
		if x.shell == nil {
			x.shell = map[string]string{}
		}
		x.shell[user] += command
		command = ""
	}
	return x.machine.run(user, x.shell[user]+command)
}

func (x *example) do(b docBlock) {
	x.t.Helper()
	switch b.kind {
	case "zone": // has been there from the start: see zoneOf
	case "sh":
		if out, status := x.machine.run("root", "set -eu\n"+x.real(b.text)); status != 0 {
			x.t.Fatalf("%s:%d: exit status %d\n%s", x.page, b.line, status, out)
		}
	case "shell":
		if out, status := x.typed("ann", "set -eu\n"+b.text); status != 0 {
			x.t.Fatalf("%s:%d: exit status %d\n%s", x.page, b.line, status, out)
		}
	case "console":
		x.console(b)
	case "log":
		for line := range strings.Lines(b.text) {
			x.await(b, "the log has "+line, line, x.machine.log)
		}
	case "main.cf":
		text := b.text
		// Nobody here listens to the system's log.
		if !strings.Contains("\n"+text, "\nmaillog_file") {
			text += "maillog_file = /var/log/mail.log\n"
		}
		// The rest of the world is on the same machine, on addresses of its own.
		if !strings.Contains("\n"+text, "\ninet_interfaces") {
			text += "inet_interfaces = 127.0.0.1, 192.0.2.1\n"
		}
		x.machine.write("etc/posthaste/main.cf", text)
	case "master.cf":
		file := x.machine.path("etc/posthaste/master.cf")
		old, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, append(old, b.text...), 0o644)
		}
		if err != nil {
			x.t.Fatal(err)
		}
	default:
		name := b.kind
		if !strings.HasPrefix(name, "/") {
			name = "/etc/posthaste/" + name
		}
		x.machine.write(name, b.text)
	}
}

// console carries out the commands of a block.
func (x *example) console(b docBlock) {
	x.t.Helper()
	var commands [][2]string // and what they print
	for line := range strings.Lines(b.text) {
		last := len(commands) - 1
		switch {
		case strings.HasPrefix(line, "# "), strings.HasPrefix(line, "$ "):
			commands = append(commands, [2]string{line})
		case last >= 0 && commands[last][1] == "" && strings.HasSuffix(commands[last][0], "\\\n"),
			last >= 0 && commands[last][1] == "" && strings.HasPrefix(line, "> "):
			commands[last][0] += strings.TrimPrefix(line, "> ")
		case last < 0:
			x.t.Fatalf("%s:%d: %q is printed by no command", x.page, b.line, line)
		default:
			commands[last][1] += line
		}
	}
	for _, c := range commands {
		user := "root"
		if c[0][0] == '$' {
			user = "ann"
		}
		do := func() string {
			out, _ := x.typed(user, c[0][2:])
			return out
		}
		if !asks.MatchString(c[0][2:]) {
			out := do()
			do = func() string { return out }
		}
		x.await(b, strings.TrimSpace(c[0]), c[1], do)
	}
}

// asks matches commands that only show how things are, and may be repeated
// until they are so.
var asks = regexp.MustCompile(`^(mailq|postqueue -[pj]|qshape|posthaste (explain|sources|trace|status|limited|diverted|events status|shaping acts|top -1|mailq|qshape|queue (list|suspended)|spool (stats|check))|postcat|grep|cat|ls|head|sed -n|curl -s [^ ]*/(metrics|api/v1/(now|destinations)))\b`)

// await waits until there is the text that the page has.
func (x *example) await(b docBlock, what, text string, is func() string) {
	x.t.Helper()
	pattern, names := x.pattern(text, b.kind == "console")
	var got string
	var m []string
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if got = is(); got == "" && strings.TrimSpace(text) == "" {
			return
		}
		if m = pattern.FindStringSubmatch(got); m != nil || b.kind == "console" && !asks.MatchString(strings.TrimLeft(what, "#$ ")) {
			break
		}
		if time.Now().After(limit) {
			break
		}
	}
	if m == nil {
		x.t.Fatalf("%s:%d: %s\nexpected\n%s\nfound\n%s", x.page, b.line, what, text, got)
	}
	for i, name := range names {
		x.ids[name] = m[i+1]
	}
}

// varying matches what is different each time, in what a page shows.
var varying = regexp.MustCompile(`\.\.\.|\b20\d{4}a\b|\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b|\b4j[0-9A-Za-z]{11,17}\b|\b[0-9A-Z][0-9a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b|\b[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b|` +
	`([a-z])\[\d+\]|\b(delay|delays|size|arrival_time"|message_size"|uid)(=|: )[\d./]+|  +\d+ [A-Z][a-z]{2} |  +`)

// pattern makes an expression of a text of the page, for the whole of what is
// printed or a line of the log. names are the page's queue IDs that the
// expression's groups find.
func (x *example) pattern(text string, whole bool) (re *regexp.Regexp, names []string) {
	var e strings.Builder
	line := func(l string) {
		at := 0
		for _, m := range varying.FindAllStringSubmatchIndex(l, -1) {
			e.WriteString(regexp.QuoteMeta(l[at:m[0]]))
			at = m[1]
			switch word := l[m[0]:m[1]]; {
			case word == "...":
				e.WriteString(`.*`)
			case strings.HasPrefix(word, "20") && strings.Contains(word, "-"):
				e.WriteString(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
			case strings.HasPrefix(word, "20"): // a selector that says the month
				e.WriteString(`\d{6}a`)
			case strings.HasPrefix(word, "4j"):
				if known := x.ids[word]; known != "" {
					e.WriteString(regexp.QuoteMeta(known))
				} else if i := slices.Index(names, word); i >= 0 {
					e.WriteString(`\w+`)
				} else {
					names = append(names, word)
					e.WriteString(`(\w+)`)
				}
			case m[2] >= 0:
				e.WriteString(l[m[2]:m[3]] + `\[\d+\]`)
			case m[4] >= 0:
				e.WriteString(l[m[4]:m[7]] + `[\d./]+`)
			case strings.TrimSpace(word) == "":
				e.WriteString(` +`)
			case strings.HasPrefix(word, "  "):
				e.WriteString(` +\d+ \w+ `)
			default: // a date
				e.WriteString(`[\w ]+ \d\d:\d\d:\d\d`)
			}
		}
		e.WriteString(regexp.QuoteMeta(l[at:]))
	}
	if !whole {
		line(strings.TrimSpace(text))
		return regexp.MustCompile(`(?m)` + e.String() + `$`), names
	}
	for l := range strings.Lines(text) {
		if l = strings.TrimRight(l, " \n"); l == "..." {
			e.WriteString(`(?:.*\n)*?`)
			continue
		}
		e.WriteString(`[ \t]*`)
		line(strings.TrimLeft(l, " "))
		e.WriteString(`[ \t]*\n`)
	}
	return regexp.MustCompile(`^(?:` + e.String() + `)\n*$`), names // a page does not show the empty lines at the end
}

// real is a command with real queue IDs in it.
func (x *example) real(command string) string {
	for name, id := range x.ids {
		command = strings.ReplaceAll(command, name, id)
	}
	return command
}

// There is nothing in a page that would have to be taken on trust.
func TestDocs(t *testing.T) {
	t.Parallel()
	for _, d := range manuals {
		t.Run(strings.TrimSuffix(d.page, ".md"), func(t *testing.T) {
			t.Parallel()
			d.test(t)
		})
	}
}

// TestPlaces: files of the tree that the documents name are there.
func TestPlaces(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(?:\\./)?((?:cmd|internal|etc|docs|master|smtpd|cleanup|pickup|qmgr|smtp|local|trivialrewrite)/[a-z0-9_./*@-]+)")
	n := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			n++
			// local/mailbox.TestSyncs is a test of the package.
			if found, err := filepath.Glob(filepath.Join("../..", strings.TrimSuffix(m[1], "."))); err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", filepath.Base(page), m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("the documents name %d files only", n)
	}
}

// TestHelp: what "posthaste help" lists is in posthaste(1).
func TestHelp(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/man/posthaste.1")
	if err != nil {
		t.Fatal(err)
	}
	out, status := newSystem(t, options{unstarted: true}).tool(nil, "help")
	sections := regexp.MustCompile(`(?m)^[A-Z].*:\n((?:  .*\n)+)`).FindAllStringSubmatch(out, -1)
	if status != 0 || len(sections) != 3 {
		t.Fatalf("help: status %d\n%s", status, out)
	}
	commands := regexp.MustCompile(`(?m)^  ((?:[a-z][a-z-]*(?: |$))+)`)
	n := 0
	for i, section := range sections {
		for _, line := range commands.FindAllStringSubmatch(section[1], -1) {
			words := strings.Fields(line[1])
			if i == 1 {
				words = words[:1] // what follows are its arguments
			}
			for _, name := range words {
				n++
				if entry := ".It Cm " + name; i < 2 && !strings.Contains(string(page), entry+"\n") && !strings.Contains(string(page), entry+" ") ||
					i == 2 && !strings.Contains(string(page), ".Xr "+name+" 1") {
					t.Errorf("posthaste(1) does not have %q", name)
				}
			}
		}
	}
	if n < 25 {
		t.Errorf("help lists %d commands only:\n%s", n, out)
	}
}

// manuals are the pages whose examples are carried out. (start.md is
// smallnet.TestStart, which needs the whole world.)
var manuals = []manual{
	{page: "site.md", programs: []string{"openssl", "swaks", "curl", "dovecot", "/usr/lib/dovecot/imap", "/usr/lib/dovecot/lmtp"}, whole: true, after: []docPart{setUp},
		zone:   "example.net. MX 10 mx1.example.net.\nmx1.example.net. A 198.51.100.10\n",
		before: map[string]func(*testing.T, *network, *machine){"": sinksAt("198.51.100.10:25")}},
	{page: "submission.md", programs: []string{"openssl", "swaks", "curl", "dovecot", "saslauthd", "saslpasswd2"}, whole: true, after: []docPart{setUp, certified}, zone: relayZone + "example.org. A 192.0.2.1\n", before: map[string]func(*testing.T, *network, *machine){"": sinksAt("198.51.100.10:25")}},
	{page: "relay.md", programs: []string{"openssl", "swaks", "smtp-sink"}, zone: relayZone, before: map[string]func(*testing.T, *network, *machine){
		"A smart host that wants a password":     provider,
		"A machine that only sends":              sinksAt("203.0.113.25:25"),
		"Different next hops for different mail": sinksAt("203.0.113.25:25", "203.0.113.7:2525", "198.51.100.10:25"),
	}},
	{page: "internals.md", zone: relayZone, programs: []string{"smtp-sink"}},
	{page: "injection.md", zone: relayZone, programs: []string{"curl", "smtp-sink"}, whole: true, aside: "posthaste-inject"},
	{page: "events.md", zone: relayZone, programs: []string{"python3", "smtp-sink"}, whole: true, aside: "posthaste-events"},
	{page: "domain.md"},
	{page: "tuning.md"},
	{page: "sending-reference.md", programs: []string{"smtp-sink"}, whole: true, zone: `
one.example. MX 10 in.bigmail.example.
two.example. MX 10 in.bigmail.example.
in.bigmail.example. A 198.51.100.20
three.example. MX 10 mx.strict.example.
mx.strict.example. A 198.51.100.30
four.example. MX 10 mx.busy.example.
mx.busy.example. A 198.51.100.40
`, before: map[string]func(*testing.T, *network, *machine){"": func(t *testing.T, _ *network, _ *machine) {
		strictSink(t, "198.51.100.30:25", "192.0.2.12")
		busySink(t, "198.51.100.40:25")
	}}},
	{page: "sending.md", programs: []string{"curl", "make", "python3"}, whole: true, aside: "posthaste-console posthaste-events posthaste-inject posthaste-metrics", zone: senderZone(), before: map[string]func(*testing.T, *network, *machine){"": senderWorld}},
	{page: "trace.md", programs: []string{"smtp-sink"}, whole: true, zone: relayZone},
	{page: "queue.md", programs: []string{"swaks", "smtp-sink"}, whole: true, zone: relayZone},
	{page: "filters.md", programs: []string{"swaks"}, before: map[string]func(*testing.T, *network, *machine){
		"Rspamd":                            rspamd,
		"OpenDKIM":                          func(t *testing.T, _ *network, _ *machine) { need(t, "opendkim") },
		"A content filter that speaks SMTP": func(t *testing.T, _ *network, _ *machine) { needModule(t, "aiosmtpd") },
		"A proxy filter, before the queue": func(t *testing.T, _ *network, m *machine) {
			needModule(t, "aiosmtpd")
			m.write("usr/local/bin/scan.py", fileOf(t, "filters.md", "/usr/local/bin/scan.py"))
		},
	}},
}

// busySink takes mail, but for the second connection.
func busySink(t *testing.T, addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	newSinkOn(t, &busyListener{Listener: l}, nil)
}

// A busyListener refuses its second connection with a greeting.
type busyListener struct {
	net.Listener
	n int
}

func (l *busyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if l.n++; err != nil || l.n != 2 {
			return c, err
		}
		_, _ = c.Write([]byte("421 4.7.0 too much mail from you\r\n"))
		_ = c.Close()
	}
}

// strictSink takes mail from everybody but one address.
func strictSink(t *testing.T, addr, but string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	newSinkOn(t, strictListener{l, but}, nil)
}

// A strictListener refuses connections from one address with a greeting.
type strictListener struct {
	net.Listener
	but string
}

func (l strictListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		if host != l.but {
			return c, nil
		}
		fmt.Fprintf(c, "554 5.7.1 blocked: %s\r\n", host)
		c.Close()
	}
}

// rspamd starts one with little to read, at the port of the page.
func rspamd(t *testing.T, _ *network, m *machine) {
	need(t, "rspamd")
	const dir = "/run/rspamd-small"
	m.write(dir+"/tld", "com\n")
	m.write(dir+"/rule.lua", rspamdRule)
	m.write(dir+"/rspamd.conf", strings.NewReplacer("{port}", "11332", "{dir}", dir).Replace(rspamdConf)+"logging { type = \"file\"; filename = \"/var/log/rspamd.log\"; }\n")
	m.must("root", "rspamd -i -u root -g root -c "+dir+"/rspamd.conf; until bash -c ': < /dev/tcp/127.0.0.1/11332' 2>/dev/null; do sleep 0.1; done")
}

// needModule is need for a module of Python's.
func needModule(t *testing.T, name string) (python string) {
	t.Helper()
	python = "/usr/bin/python3" // Debian's, which has the packages
	if out, err := exec.Command(python, "-c", "import "+name).CombinedOutput(); err != nil {
		testpeers.Missing(t, fmt.Sprintf("python3-%s (%s)", name, bytes.TrimSpace(out)))
	}
	return python
}

// fileOf is a file of a page.
func fileOf(t *testing.T, page, name string) string {
	_, blocks := manual{page: page}.sections(t)
	for _, list := range blocks {
		for _, b := range list {
			if b.kind == name {
				return b.text
			}
		}
	}
	t.Fatalf("%s has no %s", page, name)
	return ""
}

const relayZone = `mail.example.org. A 192.0.2.1
smtp.example.net. A 198.51.100.25
gateway.example.org. A 203.0.113.25
mail.inside.example.org. A 203.0.113.7
example.net. MX 10 mx1.example.net.
example.net. MX 20 mail.example.org.
mx1.example.net. A 198.51.100.10
`

// sinksAt starts mail servers that take everything.
func sinksAt(addresses ...string) func(*testing.T, *network, *machine) {
	return func(t *testing.T, _ *network, _ *machine) {
		for _, a := range addresses {
			newSinkAt(t, a, nil)
		}
	}
}

// provider is another site's mail system, smtp.example.net, which wants a
// password, and has a certificate that m trusts.
func provider(t *testing.T, n *network, m *machine) {
	p := n.newMachine("smtp.example.net")
	p.write("etc/posthaste/main.cf", `myhostname = smtp.example.net
mydestination = example.net
inet_interfaces = 198.51.100.25
maillog_file = /var/log/mail.log
smtpd_tls_cert_file = /etc/posthaste/cert.pem
smtpd_tls_key_file = /etc/posthaste/key.pem
smtpd_tls_security_level = encrypt
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = table
smtpd_sasl_path = texthash:/etc/posthaste/users
smtpd_relay_restrictions = permit_sasl_authenticated, reject
mynetworks =
`)
	makeCertificateFor(t, "smtp.example.net", p.path("etc/posthaste/key.pem"), p.path("etc/posthaste/cert.pem"))
	p.must("root", "echo 'submission inet n - n - - smtpd' >> /etc/posthaste/master.cf; echo secret | posthaste passwd customer17 > /etc/posthaste/users; posthaste start")
	cert, err := os.ReadFile(p.path("etc/posthaste/cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	m.write("etc/ssl/certs/ca-certificates.crt", string(cert))
}
