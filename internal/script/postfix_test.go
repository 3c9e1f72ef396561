package script

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"posthaste/internal/config"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// differencesFile says where the dialogues go otherwise with Postfix 3.7, and
// why that is right.
const differencesFile = "testdata/postfix/differences"

// postfixPatience is for everything that waits for Postfix's processes.
const postfixPatience = testwait.Patience

// The dialogues that our server has are played with the original, and
// everything that either says on the wire, or logs, is compared. What differs
// must be in testdata/postfix/differences, with the reason; and what is there
// must differ.
func TestDialoguesOfPostfix(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	known := readDifferences(t)
	o := newOriginal(t)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if d := known.of(name); d == nil || !d.skip {
			o.add(t, name, txtar.Parse(data))
		}
	}
	o.start(t)
	// Whoever has a zone is played alone: there is one name server.
	t.Run("together", func(t *testing.T) {
		for _, p := range o.parts {
			if section(p.ar, "zone") == "" {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					known.check(t, p.name, p.ar, o.play(t, p))
				})
			}
		}
	})
	for _, p := range o.parts {
		if zone := section(p.ar, "zone"); zone != "" {
			t.Run(p.name, func(t *testing.T) {
				o.dns.set(t, zone)
				defer o.dns.set(t, "")
				known.check(t, p.name, p.ar, o.play(t, p))
			})
		}
	}
	known.finish(t)
}

// original is a Postfix of its own: one master, and for each dialogue an
// smtpd service with the dialogue's main.cf.
type original struct {
	*testpostfix.Instance
	t      testing.TB
	dns    *zoneServer
	master strings.Builder
	parts  []*part

	mu      sync.Mutex
	log     *os.File
	partial string              // of a line
	lines   map[string][]string // by service
}

// A part is one dialogue.
type part struct {
	name, service, dir string
	ar                 *txtar.Archive
	values             map[string]string
	world              *world
}

const originalMaster = `cleanup unix n - n - 0 cleanup
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
`

// originalMain is what all of its processes have.
const originalMain = `fast_flush_domains = site.test, relay.test, broken.test
max_idle = 5s
in_flow_delay = 0
default_process_limit = 1000
smtpd_tls_session_cache_database =
transport_maps = inline:{ {moved@example.test = error:5.1.6 User has moved to elsewhere}, {wait@example.test = retry:4.2.1 Mailbox is being moved} }
`

func newOriginal(t testing.TB) *original {
	o := &original{Instance: testpostfix.New(t), t: t, dns: newZoneServer(t)}
	// A path means the same inside of smtpd's root directory as outside.
	inside := o.Path("spool", o.Dir)
	for _, d := range []string{o.Path("spool", "etc"), filepath.Join(inside, "parts")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		os.Chmod(d, 0o755)
	}
	if err := os.Symlink(filepath.Join(inside, "parts"), o.Path("parts")); err != nil {
		t.Fatal(err)
	}
	o.write("spool/etc/resolv.conf", "nameserver "+o.dns.addr+"\noptions timeout:1 attempts:1\n")
	o.write("spool/etc/nsswitch.conf", "hosts: dns\n")
	o.master.WriteString(originalMaster)
	return o
}

func (o *original) write(name, text string) {
	if err := os.WriteFile(o.Path(name), []byte(text), 0o644); err != nil {
		o.t.Fatal(err)
	}
}

// add makes a service for a dialogue.
func (o *original) add(t testing.TB, name string, ar *txtar.Archive) {
	service := fmt.Sprintf("d%d", len(o.parts))
	p := &part{name: name, service: service, ar: ar, dir: o.Path("parts", service)}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.world = &world{t: t, dir: p.dir, lines: &testproc.Output{}, peer: "198.51.100.7"}
	names, values := mainLines("dir = " + p.dir + "\nsyslog_name = " + service + "\n" + ourDefaults() + p.world.layOut(ar))
	own := false
	set := func(name, value string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, n := range names {
		_, usual := usualValues[n]
		own = own || !strings.HasPrefix(n, "smtpd_") && n != "dir" && n != "syslog_name" && (!usual || usualValues[n] != values[n])
	}
	if _, proxied := values["smtpd_upstream_proxy_protocol"]; !proxied {
		set("smtpd_upstream_proxy_protocol", "haproxy")
		p.values = map[string]string{"proxied": "yes"}
	}
	if values["smtpd_sasl_type"] == "table" {
		spec := strings.ReplaceAll(values["smtpd_sasl_path"], "$dir", p.dir)
		set("smtpd_sasl_type", "dovecot")
		set("smtpd_sasl_path", p.dir+"/auth")
		serveDovecot(t, p.dir+"/auth", spec, values["smtpd_sasl_local_domain"])
	}
	if values["inet_interfaces"] == "192.0.2.25" { // it insists on addresses that there are
		set("proxy_interfaces", values["inet_interfaces"])
		set("inet_interfaces", "127.0.0.1")
	}
	set("address_verify_service_name", "verify"+service)
	set("flush_service_name", "flush"+service)
	options := func() string {
		var b strings.Builder
		for _, n := range names {
			if n != "queue_directory" && n != "data_directory" {
				fmt.Fprintf(&b, "  -o { %s = %s }\n", n, strings.ReplaceAll(values[n], "$dir", p.dir))
			}
		}
		return b.String()
	}
	if own {
		fmt.Fprintf(&o.master, "rw%s unix - - n - - trivial-rewrite\n%s", service, options())
		fmt.Fprintf(&o.master, "cl%s unix n - n - 0 cleanup\n%s", service, options())
		set("rewrite_service_name", "rw"+service)
		set("cleanup_service_name", "cl"+service)
	}
	fmt.Fprintf(&o.master, "%s unix n - y - - smtpd\n%s", service, options())
	o.parts = append(o.parts, p)
}

var _, usualValues = mainLines(defaults)

// ourDefaults is a main.cf that gives Postfix the defaults that we have.
func ourDefaults() string {
	reg, err := config.LoadString("")
	if err != nil {
		panic(err)
	}
	text := defaults
	for _, d := range config.Differences() {
		switch d.Name {
		case "smtpd_forbid_bare_newline", "smtpd_forbid_unauth_pipelining", "enable_long_queue_ids":
			text = d.Name + " = " + reg.Raw(d.Name) + "\n" + text
		}
	}
	return text
}

func (o *original) start(t testing.TB) {
	main := originalMain + "inet_interfaces = 127.0.0.1\nproxy_interfaces = 192.0.2.25\n"
	names, values := mainLines(ourDefaults())
	for _, n := range names {
		if n != "queue_directory" && n != "data_directory" && n != "inet_interfaces" {
			main += n + " = " + values[n] + "\n"
		}
	}
	o.Configure(main, o.master.String())
	o.Start()
	// Cleanup would wait for the one who is told of new mail.
	serveUnix(t, o.Path("spool", "public", "qmgr"), func(c net.Conn) { io.Copy(io.Discard, c) })
	for _, p := range o.parts {
		serveVerify(t, o.Path("spool", "private", "verify"+p.service))
		serveFlush(t, o.Path("spool", "public", "flush"+p.service))
	}
}

func (o *original) wait(t testing.TB, what string, f func() bool) {
	for end := time.Now().Add(postfixPatience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("waited in vain for %s", what)
			return
		}
	}
}

// logOf is what a service's smtpd processes have logged so far.
func (o *original) logOf(service string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log == nil {
		f, err := os.Open(o.Path("mail.log"))
		if err != nil {
			return nil
		}
		o.log, o.lines = f, map[string][]string{}
		o.t.Cleanup(func() { f.Close() })
	}
	b, err := io.ReadAll(o.log)
	if err != nil {
		o.t.Error(err)
	}
	for line := range strings.Lines(o.partial + string(b)) {
		if o.partial = line; !strings.HasSuffix(line, "\n") {
			break
		}
		o.partial = ""
		if m := smtpdLine.FindStringSubmatch(line); m != nil {
			o.lines[m[1]] = append(o.lines[m[1]], m[2])
		}
	}
	return o.lines[service]
}

var smtpdLine = regexp.MustCompile(`^.{15} \S+ (d\d+)/smtpd\[\d+\]: (.*\n)`)

// play plays a dialogue, and returns what was said and logged.
func (o *original) play(t *testing.T, p *part) map[string]string {
	w := p.world
	var open []net.Conn // a dialogue may leave a connection
	w.t = t
	w.startFakes(p.ar)
	for _, s := range []string{"policy", "filter"} {
		os.Chmod(filepath.Join(p.dir, s), 0o666) // if it is there
	}
	w.dial = func(ahead []byte) net.Conn {
		c, err := net.Dial("unix", o.Path("spool", "public", p.service))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		if p.values["proxied"] != "" {
			kind, to := "TCP4", "192.0.2.25"
			if strings.Contains(w.peer, ":") {
				kind, to = "TCP6", "2001:db8::25"
			}
			ahead = append(fmt.Appendf(nil, "PROXY %s %s %s 40000 25\r\n", kind, w.peer, to), ahead...)
		}
		if len(ahead) > 0 {
			c.Write(ahead)
		}
		return c
	}
	said := w.play(section(p.ar, "dialogue"))
	for _, c := range open {
		c.Close()
	}
	var lines []string
	o.wait(t, "the end of the sessions", func() bool {
		lines = o.logOf(p.service)
		ended := 0
		for _, l := range lines {
			if strings.HasPrefix(l, "disconnect from ") {
				ended++
			}
		}
		return ended >= len(open)
	})
	if w.policy != nil {
		w.policy.close()
	}
	if w.filter != nil {
		w.filter.close()
	}
	usual := strings.NewReplacer("for service "+p.service, "for service smtp", "verify"+p.service, "verify", "flush"+p.service, "flush")
	return map[string]string{"dialogue": said, "log": w.plain(usual.Replace(strings.Join(lines, "")))}
}

// A difference is one entry of the list.
type difference struct {
	skip   bool
	reason string // with its keyword
	diff   string
	used   bool
	played bool // this time: -run may leave some out
}

// differences is the list.
type differences struct {
	ar      *txtar.Archive
	entries map[string]*difference
	mu      chan struct{} // one token
}

// readDifferences reads the list: a file for each dialogue, whose first lines
// are "# " and the reason, or "# skip: " and the reason; then the lines that
// only we say (-) and those that only Postfix says (+).
func readDifferences(t *testing.T) *differences {
	data, err := os.ReadFile(differencesFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	k := &differences{ar: txtar.Parse(data), entries: map[string]*difference{}, mu: make(chan struct{}, 1)}
	k.mu <- struct{}{}
	for _, f := range k.ar.Files {
		d := &difference{}
		for line := range strings.Lines(string(f.Data)) {
			if strings.HasPrefix(line, "#") {
				d.reason += line
			} else {
				d.diff += line
			}
		}
		if d.skip = strings.HasPrefix(d.reason, "# skip: "); !d.skip && d.diff == "" || len(d.reason) < 12 || strings.Contains(d.reason, "TODO") {
			t.Errorf("%s: %s: no reason", differencesFile, f.Name)
		}
		d.used = d.skip
		if _, err := os.Stat("testdata/" + f.Name + ".txtar"); err != nil {
			t.Errorf("%s: %v", differencesFile, err)
			d.played = true
		}
		k.entries[f.Name] = d
	}
	return k
}

func (k *differences) of(name string) *difference {
	<-k.mu
	defer func() { k.mu <- struct{}{} }()
	return k.entries[name]
}

// check compares what a dialogue wants with what Postfix made of it.
func (k *differences) check(t *testing.T, name string, ar *txtar.Archive, got map[string]string) {
	diff := ""
	for _, part := range []string{"dialogue", "log"} {
		ours, theirs := section(ar, part), got[part]
		if part == "log" && strings.Contains(section(ar, "main.cf"), "debug_peer_list") {
			ours, theirs = tracedLines(ours), tracedLines(theirs)
		}
		diff += lineDiff(usualLines(ours), usualLines(theirs))
	}
	<-k.mu
	defer func() { k.mu <- struct{}{} }()
	d := k.entries[name]
	if d == nil {
		if diff == "" {
			return
		}
		if d = (&difference{reason: "# TODO\n", used: true, played: true, diff: diff}); *update {
			k.entries[name] = d
		}
		t.Errorf("differs from Postfix:\n%s", diff)
		return
	}
	d.used, d.played = diff != "", true
	if d.diff != diff {
		t.Errorf("differs from Postfix otherwise than %s says:\n%s", differencesFile, lineDiff(d.diff, diff))
		d.diff = diff
	}
}

func (k *differences) finish(t *testing.T) {
	names := []string{}
	for name, d := range k.entries {
		switch {
		case d.used || !d.played:
			names = append(names, name)
		case !*update:
			t.Errorf("%s: %s does not differ", differencesFile, name)
		}
	}
	if !*update {
		return
	}
	slices.Sort(names)
	k.ar.Files = nil
	for _, name := range names {
		d := k.entries[name]
		k.ar.Files = append(k.ar.Files, txtar.File{Name: name, Data: []byte(d.reason + d.diff)})
	}
	if err := os.WriteFile(differencesFile, txtar.Format(k.ar), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Postfix has REQUIRETLS since 3.11, and OpenSSL other keys than crypto/tls;
// Dovecot has no channel binding.
var always = regexp.MustCompile(`(?m)^S: 250 REQUIRETLS\n| key-exchange .*| SCRAM-SHA-256-PLUS`)

// traced is what both log of a session that is followed. Of what only Postfix logs most tells
// of its processes' own protocol; when it asks trivial-rewrite, and of what, is its own affair.
var traced = regexp.MustCompile(`^(?:connect from|disconnect|<ID>: client|NOQUEUE|[<>] |>>> |generic_checks|match_host\w+: mynetworks|maps_find: inline|check_table_result|dns_query: \S+ \(|dns_get_answer)`)

// tracedLines are those lines of a log, without the flags of a table and with AUTH as we have it.
func tracedLines(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if traced.MatchString(line) {
			b.WriteString(line)
		}
	}
	text := regexp.MustCompile(`(\}|\w)\(\d+(?:,\w+(?:\|\w+)*)?\): `).ReplaceAllString(b.String(), "$1: ")
	return regexp.MustCompile(`(?m)(^< .*: AUTH PLAIN) .*`).ReplaceAllString(text, "$1 (secret)")
}

// usualLines takes out what always differs.
func usualLines(s string) string {
	if strings.Contains(s, "S: 250 REQUIRETLS\n") {
		s = strings.ReplaceAll(s, "S: 250-CHUNKING\n", "S: 250 CHUNKING\n")
	}
	return always.ReplaceAllString(s, "")
}

// lineDiff shows the lines that only a has with -, those that only b has
// with +.
func lineDiff(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	// common[i][j] is the longest common subsequence of x[i:] and y[j:].
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j = i+1, j+1
		case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
			out.WriteString(strings.TrimSuffix("-"+x[i], "\n") + "\n")
			i++
		default:
			out.WriteString(strings.TrimSuffix("+"+y[j], "\n") + "\n")
			j++
		}
	}
	return out.String()
}
