package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testport"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"

	"golang.org/x/tools/txtar"
)

// patience is how long is waited for what must happen. It is only ever reached
// by a failure.
const patience = testwait.Patience

const usualMain = `compatibility_level = 3.6
queue_directory = {dir}/spool
data_directory = {dir}/data
maillog_file = {dir}/mail.log
maillog_file_prefixes = {dir}
mail_owner = postfix
setgid_group = postdrop
mail_name = Postfix
mail_version = 3.7.11
myhostname = mta.example.test
mydomain = example.test
myorigin = $mydomain
mydestination = local.test, $myhostname
local_recipient_maps =
local_transport = final:[127.0.0.1]:{sink}
virtual_transport = final:[127.0.0.1]:{sink}
relayhost = [127.0.0.1]:{sink}
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
alias_maps =
alias_database =
enable_long_queue_ids = yes
smtpd_forbid_bare_newline = normalize
smtpd_forbid_unauth_pipelining = yes
smtpd_authorized_xclient_hosts = 127.0.0.0/8
smtpd_peername_lookup = no
smtpd_client_connection_count_limit = 0
smtpd_error_sleep_time = 0
smtpd_soft_error_limit = 100
smtpd_hard_error_limit = 200
disable_dns_lookups = yes
smtp_host_lookup = native
smtp_connection_cache_on_demand = no
smtp_line_length_limit = 0
in_flow_delay = 0
notify_classes =
`

const usualMaster = `127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
final unix - - n - - smtp
  -o syslog_name=postfix/final
alpha unix - - n - - smtp
  -o syslog_name=postfix/alpha
beta unix - - n - - smtp
  -o syslog_name=postfix/beta
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
local unix - n n - - local
virtual unix - n n - - virtual
lmtp unix - - n - - lmtp
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
`

// A system is one of the two, running.
type system struct {
	t        *testing.T
	original *testpostfix.Instance // unless it is ours
	dir      string
	port     int
	next     *sink
	filters  []*filter
	values   *strings.Replacer // of what a file has in braces
	out      bytes.Buffer

	lost   bool // it does not do what is waited for
	logged int  // how much of the log belongs to cases before
	names  map[string]string
}

func newOurs(t *testing.T, ar *txtar.Archive) *system {
	t.Helper()
	dir, err := os.MkdirTemp("", "df")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{"etc", "spool", "data"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &system{t: t, dir: dir, port: testport.Free(t)}
	main, master := s.layOut(ar)
	if _, err := user.Lookup("postfix"); err != nil { // Postfix is not installed: accounts that every Debian has
		main = strings.Replace(main, "mail_owner = postfix\nsetgid_group = postdrop\n", "mail_owner = mail\nsetgid_group = games\n", 1)
	}
	s.write("etc/main.cf", main+"command_directory = "+binDir+"\n")
	s.write("etc/master.cf", master)
	s.makeTables(ar)
	cmd := exec.Command(filepath.Join(binDir, "posthaste"), "-c", s.path("etc"), "start-fg")
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	proc := testproc.Start(t, cmd, dir)
	s.connect(proc.Done)
	return s
}

func newOriginal(t *testing.T, ar *txtar.Archive) *system {
	t.Helper()
	p := testpostfix.New(t)
	s := &system{t: t, original: p, dir: p.Dir, port: p.Port}
	p.Configure(s.layOut(ar))
	s.makeTables(ar)
	p.Start()
	s.connect(nil)
	return s
}

// connect makes a first connection to a mail system that has been started, and
// waits until it is over; what is logged from then on belongs to the cases.
func (s *system) connect(ended <-chan struct{}) {
	s.t.Helper()
	s.eventually("the mail system listens", func() bool {
		select {
		case <-ended:
			s.t.Errorf("the mail system ended:\n%s%s", s.out.String(), s.log())
			s.lost = true
			return true
		default:
		}
		c, err := net.Dial("tcp", s.addr())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	s.eventually("the first connection is over", func() bool { return strings.Contains(s.log(), "disconnect from") || s.t.Failed() })
	s.logged = len(s.log())
}

// layOut starts what stands around a mail system, and returns its main.cf and
// its master.cf.
func (s *system) layOut(ar *txtar.Archive) (main, master string) {
	s.t.Helper()
	s.next = newSink(s.t)
	s.t.Cleanup(func() {
		if s.lost {
			s.t.Logf("%s: output:\n%s\nlog:\n%s", s.who(), s.out.String(), s.log())
		}
	})
	values := []string{"{dir}", s.dir, "{port}", strconv.Itoa(s.port), "{sink}", strconv.Itoa(s.next.port())}
	main, master = usualMain, usualMaster
	if s.original == nil {
		main += "spool_segment_size = 4m\n" // a start writes five of them, and has all others wait for the disk
	}
	for _, f := range ar.Files {
		name, isFilter := strings.CutPrefix(f.Name, "filter ")
		switch {
		case isFilter:
			fl := newFilter(s.t, name, string(f.Data))
			s.filters = append(s.filters, fl)
			values = append(values, "{"+name+"}", strconv.Itoa(fl.port()))
		case f.Name == "main.cf":
			main += string(f.Data)
		case f.Name == "master.cf":
			master += string(f.Data)
		}
	}
	s.values = strings.NewReplacer(values...)
	return s.values.Replace(main), s.values.Replace(master)
}

// makeTables writes the lookup tables, and indexes those that want it.
func (s *system) makeTables(ar *txtar.Archive) {
	s.t.Helper()
	if err := os.Mkdir(s.path("tables"), 0o755); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range ar.Files {
		if !strings.HasPrefix(f.Name, "tables/") {
			continue
		}
		name, indexed := strings.CutSuffix(f.Name, ".db")
		s.write(name, s.values.Replace(string(f.Data)))
		if indexed {
			if out, err := s.tool("", "postmap", "hash:"+s.path(name)); err != nil {
				s.t.Fatalf("postmap: %v\n%s", err, out)
			}
		}
	}
}

// who it is, in a message.
func (s *system) who() string {
	if s.original != nil {
		return "Postfix"
	}
	return "ours"
}

func (s *system) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *system) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *system) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) log() string {
	b, _ := os.ReadFile(s.path("mail.log"))
	return string(b)
}

// tool runs one of the commands.
func (s *system) tool(stdin string, args ...string) (string, error) {
	if s.original != nil {
		return s.original.Tool(stdin, args[0], args[1:]...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "posthaste"), append([]string{"-c", s.path("etc")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

func (s *system) eventually(what string, f func() bool) {
	s.t.Helper()
	pause := 10 * time.Millisecond
	for limit := time.Now().Add(patience); !f(); time.Sleep(pause) {
		pause = min(pause*5/4, 200*time.Millisecond)
		if time.Now().After(limit) {
			s.t.Errorf("%s: waited %v in vain: %s", s.who(), patience, what)
			s.lost = true
			return
		}
	}
}

// play runs one case and tells what became of it.
func (s *system) play(kind, text string) string {
	s.names = map[string]string{}
	var b strings.Builder
	first := connectLine // what the log has of it at least
	if kind == "smtp" {
		s.session(&b, text)
	} else {
		first = pickupLine
		args, message, _ := strings.Cut(text, "\n")
		out, err := s.tool(unquoteLines(message), append([]string{"sendmail"}, strings.Fields(args)...)...)
		if err != nil {
			fmt.Fprintf(&b, "%s%v\n", out, err)
			first = nil
		} else if out != "" {
			fmt.Fprintf(&b, "said %s\n", out)
		}
	}
	queue := s.settle(b.String(), first)
	for _, f := range s.filters {
		b.WriteString(f.take())
	}
	for _, m := range s.next.take() {
		b.WriteString(report(m))
	}
	log := s.log()
	lines := s.caseLog(log[s.logged:])
	s.logged = len(log)
	b.WriteString(lines)
	b.WriteString(queue)
	return s.plain(b.String())
}

// queued is one message in the queue, as postqueue -j tells.
type queued struct {
	QueueName  string `json:"queue_name"`
	QueueID    string `json:"queue_id"`
	Sender     string `json:"sender"`
	Recipients []struct {
		Address string `json:"address"`
	} `json:"recipients"`
}

// settle waits until the log has what first matches and nothing moves any
// more, and tells what is left of the case in the queue. Lines are logged a little
// after what they tell of.
func (s *system) settle(said string, first *regexp.Regexp) string {
	var list []queued
	before := -1
	s.eventually("nothing moves any more", func() bool {
		n := len(s.log())
		same := n == before
		before = n
		if !same {
			return false // to ask the queue costs a process
		}
		if first != nil && !first.MatchString(s.log()[s.logged:]) {
			return false
		}
		if d, _ := filepath.Glob(s.path("spool/maildrop/*")); len(d) > 0 {
			return false
		}
		for _, q := range []string{"incoming", "active"} { // of the original only
			if d, _ := os.ReadDir(s.path("spool", q)); len(d) > 0 {
				return false
			}
		}
		out, err := s.tool("", "postqueue", "-j")
		if err != nil {
			return false
		}
		list = nil
		for line := range strings.Lines(out) {
			var q queued
			if json.Unmarshal([]byte(line), &q) == nil {
				if list = append(list, q); q.QueueName == "active" || q.QueueName == "incoming" {
					return false
				}
			}
		}
		return s.quiet(said, list) && len(s.log()) == before
	})
	log := s.log()[s.logged:]
	var left []string
	for _, q := range list {
		if !strings.Contains(log, q.QueueID+": ") {
			continue
		}
		var rcpts []string
		for _, r := range q.Recipients {
			rcpts = append(rcpts, r.Address)
		}
		slices.Sort(rcpts)
		left = append(left, fmt.Sprintf("queue %s %s from <%s> to %q\n", q.QueueName, q.QueueID, q.Sender, rcpts))
	}
	slices.Sort(left)
	return strings.Join(left, "")
}

var (
	// begun is what says that there is a message.
	begun       = regexp.MustCompile(`pickup\[\d+\]: (\w+): uid=|notification: (\w+)$|qmgr\[\d+\]: (\w+): from=<.*\(queue active\)|queued as (\w+)`)
	pickupLine  = regexp.MustCompile(`pickup\[\d+\]: (warning: |\w+: uid=)`)
	clientLine  = regexp.MustCompile(`smtpd\[\d+\]: (\w+): client=`)
	connectLine = regexp.MustCompile(`smtpd\[\d+\]: (connect|disconnect) from`)
)

// quiet says whether the log has an end to everything that began, sessions and
// messages, or the queue has it. said is what the client was told.
func (s *system) quiet(said string, list []queued) bool {
	log := s.log()[s.logged:]
	open := 0
	for _, m := range connectLine.FindAllStringSubmatch(log, -1) {
		if m[1] == "connect" {
			open++
		} else {
			open--
		}
	}
	if open != 0 {
		return false
	}
	// A server that has taken a message logs something more of it, though perhaps late.
	for _, m := range clientLine.FindAllStringSubmatch(log, -1) {
		if strings.Contains(said, "C: DATA") && !regexp.MustCompile(`(cleanup|smtpd)\[\d+\]: (warning: )?`+m[1]+`: [^c]`).MatchString(log) &&
			!strings.Contains(log, "discard: ") {
			return false
		}
	}
	for line := range strings.Lines(said + log) {
		m := begun.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		id := strings.Join(m[1:], "")
		if regexp.MustCompile(`cleanup\[\d+\]: `+id+`: (milter-)?reject: `).MatchString(log) &&
			(strings.Contains(log, id+": client=") || regexp.MustCompile(`cleanup\[\d+\]: `+id+`: to=<.*status=bounced`).MatchString(log)) {
			continue // refused by SMTP; or, in the original, sent back by cleanup
		}
		ends := []string{": removed"}
		if i := slices.IndexFunc(list, func(q queued) bool { return q.QueueID == id }); i >= 0 {
			if list[i].QueueName == "hold" {
				continue
			}
			ends = []string{": to=<"}
		} else if m[4] != "" && strings.Contains(log, "discard: ") {
			continue
		}
		if !slices.ContainsFunc(ends, func(end string) bool { return strings.Contains(log, id+end) }) {
			return false
		}
	}
	return true
}
