package simtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/cleanup"
	"posthaste/internal/audit"
	"posthaste/internal/bounce"
	"posthaste/internal/config"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/service"
	"posthaste/internal/vfs"
	"posthaste/local"
	"posthaste/pickup"
	"posthaste/qmgr"
	"posthaste/smtp"
	"posthaste/smtpd"
	"posthaste/trivialrewrite"
)

// originHop is where notices go.
const originHop = "203.0.113.9:25"

var hopAddrs = []string{"203.0.113.1:25", "203.0.113.2:25", "203.0.113.3:25", originHop}

const zoneText = `
one.test. MX 10 mx.one.test.
mx.one.test. A 203.0.113.1
two.test. MX 10 mx.two.test.
mx.two.test. A 203.0.113.2
three.test. MX 10 mx.three.test.
three.test. MX 20 mx.two.test.
mx.three.test. A 203.0.113.3
origin.test. MX 10 mx.origin.test.
mx.origin.test. A 203.0.113.9
sim.test. MX 10 mx.origin.test.
mail.sim.test. A 192.0.2.25
1.0.18.198.in-addr.arpa. PTR client.test.
client.test. A 198.18.0.1
`

const mainCF = `compatibility_level = 3.6
myhostname = mail.sim.test
myorigin = sim.test
mydestination = local.test
mynetworks = 198.18.0.0/15
inet_interfaces = 192.0.2.25
inet_protocols = ipv4
queue_minfree = 0
home_mailbox = Maildir/
biff = no
local_recipient_maps =
notify_classes =
maillog_file = /dev/null
maillog_file_prefixes = /dev
spool_segment_size = 1048576
spool_inline_limit = 4096
spool_scrub_period = 0
minimal_backoff_time = 60s
maximal_backoff_time = 300s
queue_run_delay = 60s
maximal_queue_lifetime = 2h
bounce_queue_lifetime = 2h
smtp_connect_timeout = 20s
smtpd_error_sleep_time = 0
smtpd_peername_lookup = no
`

// concurrency is default_destination_concurrency_limit of all settings.
const concurrency = 2

// limits are narrow enough for much of the mail to wait for them, in the active queue and outside.
const limits = `destination_rollup = yes
destination_provider_maps = inline:{ {.test = sim} }
destination_limit_maps = inline:{ {provider:sim = concurrency=3, messages=600/min} {* = connections=300/min, messages_per_connection=3} {two.test = recipients=100000/d} }
shared_limit_active_limit = 2
`

// pools have mail go from two sources, one of which warms up and is used up early.
const pools = `egress_source_maps = inline:{ {m1 = address=192.0.2.25, helo=m1.sim.test} {m2 = address=192.0.2.26, helo=m2.sim.test, warmup=2000-01-01:5,=20} {m3 = address=192.0.2.27, warmup=2000-01-01:=100000, warmup_over=wait} }
egress_pool_maps = inline:{ {two = m1=2, m2=3} {waits = m1, m2, m3} }
sender_dependent_egress_pool_maps = inline:{ {<> = waits} }
default_egress_pool = two
`

// shapingFile has rules that act on what hosts answer in many a run.
const shapingFile = `["default"]
connection_limit = 3
max_message_rate = "600/min"
["two.test"]
mx_rollup = false
max_recipients_per_batch = 1
[["default".automation]]
regex = "^4"
trigger = {Threshold="3/min"}
action = "Suspend"
duration = "90s"
match_internal = true
[["default".automation]]
regex = "^45"
action = [{SetConfig={name="connection_limit", value=1}}, {SetDomainConfig={name="max_message_rate", value="30/min"}}]
duration = "5 minutes"
`

// waits are settings with which SMTP clients wait for their messages to be delivered: those of a NewWaitWorld.
var waits = []string{
	"smtpd_delivery_wait = 5s\n",
	"smtpd_delivery_wait = 40s\nsmtpd_delivery_wait_failure = refuse\ndefault_process_limit = 3\n",
	"smtpd_delivery_wait = 1s\nsmtp_destination_recipient_limit = 2\nspool_commit_delay = 1s\n" + limits,
	"smtpd_delivery_wait = 200s\nin_flow_delay = 1s\ndefault_process_limit = 1\nsmtp_connection_cache_on_demand = no\n",
}

// tenants have mail of every second sender be that of a tenant who may have one delivery under way, wherever it goes, and of
// the others that of one who has the larger share.
const tenants = `tenant_maps = pcre:{{/^sender\d*[13579]@/ odd} {/^sender\d*[02468]@/ even}}
tenant_limit_maps = inline:{ {odd = concurrency=1, messages=600/min} {even = recipients=100000/d} }
tenant_weight_maps = inline:{ {even = 3} }
tenant_queue_lifetime_maps = inline:{ {odd = 2h} }
`

// sources is how many pools has.
const sources = 3

var variants = []string{
	"in_flow_delay = 0\n",
	"in_flow_delay = 1s\ndefault_process_limit = 3\nspool_exact_doubt = yes\n",
	"smtp_destination_recipient_limit = 2\nspool_commit_delay = 1s\n" + limits,
	"smtp_destination_recipient_limit = 2\n" + limits + pools,
	"default_process_limit = 3\n" + pools,
	"smtp_destination_recipient_limit = 2\nshaping_files = $config_directory/shaping.toml\n" + pools,
	"spool_exact_doubt = yes\ndefault_process_limit = 1\nsmtp_connection_cache_on_demand = no\ndelay_warning_time = 10m\n",
}

// broken are settings with which lookups fail, beside those of the first variant.
var broken = []string{
	"alias_maps = fail:aliases\n",
	"virtual_alias_maps = fail:virtual\n",
	"transport_maps = fail:transport\n",
	"virtual_alias_maps = fail:virtual\nalias_maps = fail:aliases\n",
}

const masterCF = `smtp inet n - n - - smtpd
pickup unix n - n - 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n - 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
smtp unix - - n - 20 smtp
relay unix - - n - 20 smtp
local unix - n n - 20 local
`

// A masterLine is a service as master.cf has it.
type masterLine struct {
	name, path string
	spec       service.Spec
}

var specs = []masterLine{
	{"cleanup", "public/cleanup", cleanup.Spec()},
	{"qmgr", "public/qmgr", qmgr.Spec()},
	{"rewrite", "private/rewrite", trivialrewrite.Spec()},
	{"bounce", "private/bounce", bounce.Spec()},
	{"smtp", "private/smtp", smtp.Spec()},
	{"local", "private/local", local.Spec()},
	{"smtp", "inet", smtpd.Spec()},
	{"pickup", "public/pickup", pickup.Spec()},
}

// A World is what all runs of a test have in common: configurations, and the directory that they are in.
type World struct {
	events  bool // services tell of events
	lines   []masterLine
	dir     string
	configs []map[string]*config.Config // of variants
	broken  []map[string]*config.Config // of broken
}

// NewWorld makes one below dir.
func NewWorld(t testing.TB, dir string) *World {
	t.Helper()
	return newWorld(t, dir, "", variants)
}

// NewWaitWorld makes one in which mail is delivered before it is acknowledged.
func NewWaitWorld(t testing.TB, dir string) *World {
	t.Helper()
	return newWorld(t, dir, "", append(slices.Clone(waits), variants[0]))
}

// NewTenantWorld makes one in which mail is that of two tenants, one of whom has a limit.
func NewTenantWorld(t testing.TB, dir string) *World {
	t.Helper()
	return newWorld(t, dir, tenants, variants)
}

// newWorld makes one with more settings.
func newWorld(t testing.TB, dir, more string, variants []string) *World {
	t.Helper()
	w := &World{dir: dir, events: more == withEvents, lines: specs}
	if err := w.accounts(); err != nil {
		t.Fatal(err)
	}
	for i, v := range slices.Concat(variants, broken) {
		cfg := w.configure(t, i, v+more)
		if i < len(variants) {
			w.configs = append(w.configs, cfg)
		} else {
			w.broken = append(w.broken, cfg)
		}
	}
	return w
}

// configure makes configuration number i, and reads it as each service does.
func (w *World) configure(t testing.TB, i int, more string) map[string]*config.Config {
	t.Helper()
	etc := filepath.Join(w.dir, fmt.Sprintf("etc%d", i))
	data := filepath.Join(w.dir, "data")
	text := mainCF + fmt.Sprintf("default_destination_concurrency_limit = %d\nalias_maps = texthash:%[2]s/aliases\nqueue_directory = %[2]s\ndata_directory = %[3]s\n", concurrency, w.dir, data) + more
	if err := os.MkdirAll(etc, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"main.cf": text, "master.cf": masterCF, "shaping.toml": shapingFile} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	byProcess := map[string]*config.Config{}
	for _, s := range w.lines {
		line := service.CommandLine{Name: s.name}
		cfg, err := config.Load(etc, line.Settings(s.spec.Process, 1)...)
		if err != nil {
			t.Fatal(err)
		}
		byProcess[s.spec.Process] = cfg
	}
	byProcess[service.EventsName] = byProcess["cleanup"] // it reads nothing of its own
	return byProcess
}

// An Outcome is what came of a run.
type Outcome struct {
	Errors []string
	Steps  int
	Sum    [32]byte // of log and disk
	Log    string
	Doing  Counts
}

// Counts are what happened in runs.
type Counts struct {
	Letters, Acknowledged, Deliveries, Notices, Repeated, Faults int
	// How often a cleanup went on from what it had read while its predecessor had the queue, and how
	// often that was of no use although the predecessor had ended in good order.
	Followed, Unfollowed int
	// How often mail was parked outside the active queue for a limit that its destination shares.
	Parked int
	// How many messages were of the tenant with a limit.
	Tenants int
	// How many messages that left the queue were looked for in the journal of events.
	Told    int
	Virtual time.Duration
}

// Run carries out a plan.
func (w *World) Run(t *testing.T, p *Plan) (out Outcome) {
	if err := os.RemoveAll(filepath.Join(w.dir, "data")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"qmgr", "overrides", "pickup"} {
		if err := os.MkdirAll(filepath.Join(w.dir, "data", d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	flow, free, err := flowPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	var s *site
	synctest.Test(t, func(t *testing.T) {
		s = &site{seed: seed(p.Seed), plan: p, disk: vfs.NewMem(4096), sockets: map[string]*socket{}, zone: fakezone.Must(zoneText), flow: flow,
			hosts: map[string]*hop{}, counts: map[string]int{}, setting: p.Setting}
		s.books = &books{site: s}
		if s.mail, err = emptyMailroom(s, w.dir); err != nil {
			t.Fatal(err)
		}
		if s.drop, err = emptyDropbox(s); err != nil {
			t.Fatal(err)
		}
		s.books.events = w.events
		s.run()
		out.Doing.Virtual = time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	})
	s.again(t)
	virtual := out.Doing.Virtual
	out = s.outcome()
	out.Doing.Virtual = virtual
	if len(p.Clock) == 0 && !slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == kill || f.Kind == powerCut }) {
		out.Errors = append(out.Errors, w.audit(t, out.Log)...)
	}
	return out
}

// audit holds the log against the queue, which is empty. A process that was killed may not have come to
// logging what it did: such runs are not for it.
func (w *World) audit(t *testing.T, log string) (errors []string) {
	file, queue := filepath.Join(w.dir, "log"), filepath.Join(w.dir, "queue")
	for name, text := range map[string]string{file: log, queue: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	if status := audit.Run("audit", []string{"-c", filepath.Join(w.dir, "etc0"), "-q", queue, file}, nil, &said, &said); status != 0 {
		errors = append(errors, "the audit says:\n"+said.String())
	}
	return errors
}

// furnish makes the services and the next hops.
func (s *site) furnish() {
	for _, sp := range specs {
		e := &entry{site: s, name: sp.name, path: sp.path, spec: sp.spec, sock: newSocket(sp.path)}
		s.services = append(s.services, e)
		s.sockets[sp.path] = e.sock
	}
	if s.books.events {
		e := &entry{site: s, name: service.EventsName, path: "private/" + service.EventsName, spec: eventsSpec(), sock: newSocket("private/" + service.EventsName)}
		s.services = append(s.services, e)
		s.sockets[e.path] = e.sock
	}
	for _, a := range hopAddrs {
		s.hosts[a] = &hop{site: s, addr: a, trouble: s.plan.trouble[a], list: s.plan.moods[a], rnd: s.seed.source("hop " + a), most: map[string]int{}}
	}
}

// post has the letters sent, each at its time: those that come when the clock has been set, or the others.
func (s *site) post(late bool) {
	for i := range s.plan.Letters {
		if l := &s.plan.Letters[i]; l.Token != "" && l.Late == late {
			s.all.Go(func() { s.send(l) })
		}
	}
}

// run is all of a run, or what comes before the clock is set.
func (s *site) run() {
	s.furnish()
	s.books.exact = s.exact()
	s.boot()
	for i := range s.plan.Faults {
		if f := &s.plan.Faults[i]; f.Step == 0 && f.Kind != "" {
			s.all.Go(func() { s.afterwards(f) })
		}
	}
	s.post(false)
	s.all.Go(s.wakeful)
	if len(s.plan.Clock) > 0 {
		time.Sleep(s.plan.First)
		s.close()
		return
	}
	time.Sleep(span)
	s.heal()
	s.settle()
	s.close()
}

// close is the end.
func (s *site) close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if s.isHealed() {
		s.books.filled()
	}
	s.stop()
	s.closeSockets()
	s.all.Wait()
}

// used are the settings that are in use at some time, of those that have no broken tables.
func (s *site) used() []int {
	used := []int{s.setting, s.plan.Setting}
	for _, f := range s.plan.Faults {
		if f.Kind == reload {
			used = append(used, int(f.N)%len(s.plan.configs))
		}
	}
	return used
}

// pooled says whether mail goes from pools of sources at some time.
func (s *site) pooled() bool {
	return slices.ContainsFunc(s.used(), func(n int) bool { return s.plan.configs[n]["qmgr"].String("default_egress_pool") != "" })
}

// tenants says whether mail is that of tenants.
func (s *site) tenants() bool {
	return len(s.plan.configs[s.plan.Setting]["qmgr"].List("tenant_limit_maps")) > 0
}

// exact says whether spool_exact_doubt is set all the time.
func (s *site) exact() bool {
	if slices.ContainsFunc(s.plan.Faults, func(f Fault) bool { return f.Kind == badTables }) {
		return false
	}
	return !slices.ContainsFunc(s.used(), func(n int) bool { return !s.plan.configs[n]["cleanup"].Bool("spool_exact_doubt") })
}

// settle waits until the queue is empty.
func (s *site) settle() {
	for range 30 {
		time.Sleep(10 * time.Minute)
		items, err := s.queued()
		if s.books.remaining = items; err == nil && len(items) == 0 {
			return
		}
		s.books.err = err
		if err == nil && !slices.ContainsFunc(items, func(i item) bool { return i.queue != "hold" }) {
			s.order(release, "")
		}
	}
}

func (s *site) outcome() Outcome {
	out := Outcome{Steps: s.steps, Log: s.log.String()}
	if s.plan.Digest {
		out.Sum = s.digest()
	}
	s.mail.delivered()
	s.drop.left()
	out.Errors = s.books.check(out.Log)
	out.Doing = s.books.counts
	out.Doing.Parked = strings.Count(out.Log, "waiting for the limit of provider sim")
	out.Doing.Tenants = strings.Count(out.Log, "tenant=odd")
	out.Doing.Unfollowed = strings.Count(out.Log, "what was read while the predecessor had it was of no use")
	out.Doing.Followed = strings.Count(out.Log, "took over the queue: ") - out.Doing.Unfollowed
	return out
}

// digest is of the log and of what is on the disk.
func (s *site) digest() (sum [32]byte) {
	h := sha256.New()
	h.Write(s.log.Bytes())
	for _, dir := range []string{"spool", "spool/seg", "spool/big"} {
		names, _ := s.disk.List(dir)
		for _, name := range names {
			fmt.Fprintf(h, "%s/%s\n", dir, name)
			f, err := s.disk.Open(dir + "/" + name)
			if err != nil {
				continue
			}
			size, _ := f.Size()
			b := make([]byte, size)
			_, _ = f.ReadAt(b, 0)
			h.Write(b)
			_ = f.Close()
		}
	}
	h.Sum(sum[:0])
	return sum
}
