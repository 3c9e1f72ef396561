package events

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/vfs"
)

// entry is an event with a number, of a message.
func entry(n uint64, key string) eventjournal.Entry {
	return eventjournal.Entry{Seq: n, EventRecord: proto.EventRecord{Kind: "delivered", Key: key,
		JSON: fmt.Appendf(nil, `{"schema":1,"id":"%032d","kind":"delivered","queue_id":"%s"}`, n, key)}}
}

func entries(n int) (list []eventjournal.Entry) {
	for i := range n {
		list = append(list, entry(uint64(i)+1, fmt.Sprint("q", i%3)))
	}
	return list
}

func sink(t testing.TB, item string) *event.Sink {
	t.Helper()
	list, err := event.ParseSinks([]string{item})
	if err != nil {
		t.Fatal(err)
	}
	return &list[0]
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A file has an event on each line; it is renamed when it is large, and only so many former ones are kept.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	c := newFile(sink(t, "file:"+path+", size_limit=64k, keep=2"), t.Logf)
	c.limit = 300
	if err := os.WriteFile(path, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	list := entries(12)
	for i := range list {
		if err := c.send(t.Context(), list[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	var all string
	for _, name := range []string{path + ".2", path + ".1", path} {
		text := readFile(t, name)
		if len(text) > 300 || !strings.HasSuffix(text, "\n") {
			t.Errorf("%s: %q", name, text)
		}
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		all += text
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("too many are kept")
	}
	lines := strings.Split(strings.TrimSuffix(all, "\n"), "\n")
	for i, e := range list[12-len(lines):] {
		if lines[i] != string(e.JSON) {
			t.Errorf("line %d is %s", i, lines[i])
		}
	}
	c.close()
}

// What power has failed in is taken off; a file that somebody has renamed is begun anew.
func TestFileAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	if err := os.WriteFile(path, []byte("{\"a\":1}\n{\"b"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newFile(sink(t, "file:"+path), t.Logf)
	defer c.close()
	one := entry(1, "q")
	if err := c.send(t.Context(), []eventjournal.Entry{one}); err != nil {
		t.Fatal(err)
	}
	if got, want := readFile(t, path), "{\"a\":1}\n"+string(one.JSON)+"\n"; got != want {
		t.Errorf("got %q", got)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	two := entry(2, "q")
	if err := c.send(t.Context(), []eventjournal.Entry{two}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, path); got != string(two.JSON)+"\n" {
		t.Errorf("got %q", got)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 200000), 0o600); err != nil {
		t.Fatal(err)
	}
	c.close()
	if err := c.send(t.Context(), []eventjournal.Entry{two}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, path); got != string(two.JSON)+"\n" {
		t.Errorf("a file without an end of a line: %d octets", len(got))
	}
}

// NULs, which some file systems have after a power cut, are taken off with all behind them, and kept elsewhere: each line of
// the file is a whole event afterwards, and the log says so. A file that is whole stays as it is.
func TestFileNULs(t *testing.T) {
	t.Parallel()
	const whole = "{\"a\":1}\n{\"a\":2}\n"
	nuls := strings.Repeat("\x00", 300<<10)
	for i, tt := range []struct{ text, torn string }{
		{whole, ""},
		{"", ""},
		{whole + "\x00", "\x00"},
		{whole + nuls, nuls},
		{whole + "{\"a\":" + nuls + "\n{\"a\":4}\n", "{\"a\":" + nuls + "\n{\"a\":4}\n"},
		{whole + nuls + "5}\n{\"a\":6}\n{\"a", nuls + "5}\n{\"a\":6}\n{\"a"},
		{nuls, nuls},
	} {
		path := filepath.Join(t.TempDir(), "mail.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var said []string
		c := newFile(sink(t, "file:"+path), func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		one := entry(1, "q")
		if err := errors.Join(c.send(t.Context(), []eventjournal.Entry{one}), c.settle(), c.close()); err != nil {
			t.Fatal(err)
		}
		if got, want := readFile(t, path), strings.TrimSuffix(tt.text, tt.torn)+string(one.JSON)+"\n"; got != want {
			t.Errorf("%d: %q", i, got)
		}
		torn, err := os.ReadFile(path + event.TornSuffix)
		if string(torn) != tt.torn || (err == nil) != (tt.torn != "") || (len(said) == 1) != (tt.torn != "") {
			t.Errorf("%d: aside %d octets, %v; said %q", i, len(torn), err, said)
		}
	}
}

// What a power cut has spoilt does not take the place of what an earlier one had; of many the last ones are kept.
func TestFileTornAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	spoil := func(i int) {
		if err := os.WriteFile(path, fmt.Appendf(nil, "\x00%d", i), 0o600); err != nil {
			t.Fatal(err)
		}
		c := newFile(sink(t, "file:"+path), t.Logf)
		if err := errors.Join(c.send(t.Context(), entries(1)), c.close()); err != nil {
			t.Fatal(err)
		}
	}
	const n = 9
	for i := range n {
		spoil(i)
	}
	for i := range tornKept + 1 {
		name := path + event.TornSuffix
		if i > 0 {
			name += fmt.Sprint(".", i)
		}
		if got, want := readFile(t, name), fmt.Sprint("\x00", n-1-i); got != want {
			t.Errorf("%s has %q, not %q", name, got, want)
		}
	}
	if list, err := filepath.Glob(path + "*"); err != nil || len(list) != tornKept+2 {
		t.Errorf("there are %q, %v", list, err)
	}
}

// verify checks a request as Standard Webhooks has it, and gives its events.
func verify(t *testing.T, r *http.Request, key string) []json.RawMessage {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	mac := hmac.New(sha256.New, []byte(key))
	io.WriteString(mac, r.Header.Get("webhook-id")+"."+r.Header.Get("webhook-timestamp")+"."+string(body))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("webhook-signature") != want {
		t.Errorf("the signature is %s", r.Header.Get("webhook-signature"))
	}
	var list []json.RawMessage
	if r.Header.Get("Content-Type") == "application/x-ndjson" {
		for line := range bytes.Lines(body) {
			list = append(list, bytes.TrimSuffix(line, []byte("\n")))
		}
	} else if err := json.Unmarshal(body, &list); err != nil {
		t.Errorf("%s: %v", body, err)
	}
	return list
}

// A webhook gets signed batches over TLS. An authority that is not trusted, replies of all classes, and
// redirections are what they are.
func TestWebhook(t *testing.T) {
	t.Parallel()
	const key = "0123456789abcdef"
	var status atomic.Int64
	var got atomic.Pointer[[]json.RawMessage]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := verify(t, r, key)
		got.Store(&list)
		status := int(status.Load())
		switch status {
		case 302:
			w.Header().Set("Location", "/elsewhere")
		case 503:
			w.Header().Set("Retry-After", "120")
		}
		w.WriteHeader(status)
		io.WriteString(w, "why \x00 not")
	}))
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secretFile := write("secret", "whsec_"+base64.StdEncoding.EncodeToString([]byte(key))+"\n")
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	list := entries(3)
	for _, format := range []string{"json", "ndjson"} {
		w, err := newWebhook(sink(t, "webhook:"+server.URL+", secret_file="+secretFile+", tls_CAfile="+ca+", format="+format), "1.0")
		if err != nil {
			t.Fatal(err)
		}
		status.Store(204)
		if err := w.send(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for i, e := range list {
			if got := *got.Load(); len(got) != 3 || string(got[i]) != string(e.JSON) {
				t.Errorf("%s: got %s", format, got)
			}
		}
		for code, class := range map[int]string{400: "refused", 401: "refused", 410: "refused", 408: "again", 429: "again", 500: "again", 503: "later", 302: "again"} {
			status.Store(int64(code))
			err := w.send(t.Context(), list)
			var no *refusal
			var wait *later
			was := "again"
			switch {
			case err == nil:
				was = "taken"
			case errors.As(err, &no):
				was = "refused"
			case errors.As(err, &wait):
				was = "later"
				if wait.pause != 2*time.Minute {
					t.Errorf("pause %v", wait.pause)
				}
			}
			if was != class || err != nil && !strings.Contains(err.Error(), fmt.Sprint(code)) {
				t.Errorf("%d: %s: %v", code, was, err)
			}
		}
		w.close()
	}
	w, err := newWebhook(sink(t, "webhook:"+server.URL+", secret_file="+secretFile), "1.0")
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	var no *refusal
	if err := w.send(t.Context(), list); err == nil || errors.As(err, &no) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that is not known: %v", err)
	}
	for text, want := range map[string]string{"short": "fewer than 16", "whsec_***": "not base64"} {
		if _, err := newWebhook(sink(t, "webhook:"+server.URL+", secret_file="+write("bad", text)), "1.0"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), text) && text == "whsec_***" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"": 0, "x": 0, "-5": 0, "30": 30 * time.Second, "999999999": time.Hour,
		"Sat, 28 Nov 2026 12:01:00 GMT": time.Minute, "Sat, 28 Nov 2026 11:00:00 GMT": 0} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

// A broker that takes events and does not answer is left when nobody waits any more, and used again later.
func TestKafkaSilent(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "mail"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	k, err := newTopic(sink(t, "kafka:"+cluster.ListenAddrs()[0]+"/mail"), "1.0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { k.close() }()
	ctx, cancel := context.WithCancel(t.Context())
	asked, silent := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		ask()
		cluster.SleepControl(func() { <-silent })
		return nil, nil, false
	})
	sent := make(chan error, 1)
	go func() { sent <- k.send(ctx, entries(3)) }()
	<-asked
	cancel()
	if err := <-sent; err == nil {
		t.Error("events are sent that no broker has confirmed")
	}
	close(silent)
	if err := k.send(t.Context(), entries(3)); err != nil {
		t.Error(err)
	}
}

// Kafka has all events of a message in one partition, in order.
func TestKafka(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(4, "mail"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	k, err := newTopic(sink(t, "kafka:"+cluster.ListenAddrs()[0]+"/mail"), "1.0+x")
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	list := entries(30)
	for i := 0; i < len(list); i += 10 {
		if err := k.send(t.Context(), list[i:i+10]); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("mail"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	byKey, partition := make(map[string][]string), make(map[string]int32)
	for n := 0; n < len(list); {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			key := string(r.Key)
			if p, ok := partition[key]; ok && p != r.Partition {
				t.Errorf("%s is in two partitions", key)
			}
			partition[key] = r.Partition
			byKey[key] = append(byKey[key], string(r.Value))
			if len(r.Headers) != 2 || string(r.Headers[0].Value) != "delivered" || len(r.Headers[1].Value) != 32 {
				t.Errorf("headers %v", r.Headers)
			}
		})
	}
	for key, values := range byKey {
		var want []string
		for _, e := range list {
			if e.Key == key {
				want = append(want, string(e.JSON))
			}
		}
		if !slices.Equal(values, want) {
			t.Errorf("%s: %q", key, values)
		}
	}
}

func TestSASLFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"PLAIN\nu\np\n": "PLAIN", "scram-sha-256\r\nu\r\np": "SCRAM-SHA-256", "SCRAM-SHA-512\nu\np": "SCRAM-SHA-512"} {
		if m, err := saslMechanism(text); err != nil || m.Name() != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "PLAIN", "PLAIN\nu", "NTLM\nu\np", "PLAIN\nu\np\nmore"} {
		if _, err := saslMechanism(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// A played is a carrier that a test plays.
type played struct {
	mu   sync.Mutex
	got  []uint64
	play func(list []eventjournal.Entry) error
	// Of settle: how often it was called, and what it says.
	settled  int
	unstable error
}

// settle implements settler.
func (p *played) settle() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled++
	return p.unstable
}

func (p *played) send(_ context.Context, list []eventjournal.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.play(list); err != nil {
		return err
	}
	for i := range list {
		p.got = append(p.got, list[i].Seq)
	}
	return nil
}

func (p *played) close() error { return nil }

func (p *played) numbers() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

// A scene is a journal with one sink.
type scene struct {
	t       *testing.T
	disk    *vfs.Mem
	journal *eventjournal.Journal
	carrier *played
	courier *courier
	dir     string
	stop    func()
}

func newScene(t *testing.T, item string, play func([]eventjournal.Entry) error) *scene {
	s := &scene{t: t, disk: vfs.NewMem(512), carrier: &played{play: play}, dir: t.TempDir()}
	s.start(item)
	return s
}

// start begins a life of the service.
func (s *scene) start(item string) {
	s.t.Helper()
	var err error
	s.journal, err = eventjournal.Open(eventjournal.Options{FS: s.disk, Dir: "events", Limit: 1 << 26, SegmentSize: 1 << 16, Keep: time.Hour, Now: time.Now,
		Warn: func(f string, a ...any) { s.t.Errorf(f, a...) }})
	if err != nil {
		s.t.Fatal(err)
	}
	spec := sink(s.t, item)
	s.courier, err = newCourier(spec, s.carrier, s.journal, maillog.New("test", discard{}), &deadLetters{path: deadPath(s.dir, spec.Name), limit: 1 << 20})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.courier.run(ctx) })
	s.stop = func() {
		cancel()
		wg.Wait()
		s.journal.Close()
		s.courier.log.Close()
	}
}

// set changes what the carrier does.
func (s *scene) set(f func()) {
	s.carrier.mu.Lock()
	defer s.carrier.mu.Unlock()
	f()
}

type discard struct{}

func (discard) Format() maillog.Format      { return maillog.Plain }
func (discard) Close() error                { return nil }
func (discard) Write(b []byte) (int, error) { return len(b), nil }

// put appends events of a kind.
func (s *scene) put(kind string, n int) {
	s.t.Helper()
	for range n {
		done := make(chan error)
		e := entry(1, "q").EventRecord
		e.Kind = kind
		s.journal.Append([]proto.EventRecord{e}, func(_ uint64, err error) { done <- err })
		if err := <-done; err != nil {
			s.t.Fatal(err)
		}
	}
}

// A sink that fails gets the same events again, with pauses that grow, and in order; others are not sent
// meanwhile. Kinds that it does not want it does not get.
func TestCourier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Time
		s := newScene(t, "file:/x, events=delivered", func([]eventjournal.Entry) error {
			if attempts = append(attempts, time.Now()); len(attempts) < 5 {
				return errors.New("no route to host")
			}
			return nil
		})
		s.put("delivered", 1)
		heard()
		s.put("deferred", 2)
		s.put("delivered", 2)
		heard()
		if st := s.courier.status(); st.Position != 1 || st.Error != "no route to host" || st.Failing.IsZero() || st.Next.IsZero() {
			t.Errorf("while it fails: %+v", st)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.carrier.numbers(); !slices.Equal(got, []uint64{1, 4, 5}) {
			t.Errorf("it got %v", got)
		}
		if st := s.courier.status(); st.Position != 6 || st.Error != "" || !st.Failing.IsZero() || st.Sent != 3 {
			t.Errorf("at the end: %+v", st)
		}
		pause := firstPause
		for i := 1; i < 5; i++ {
			if d := attempts[i].Sub(attempts[i-1]); d < pause*3/4 || d > pause*5/4 {
				t.Errorf("pause %d: %v", i, d)
			}
			pause *= 2
		}
		s.stop()
	})
}

// heard waits until what was put is with its carrier, also when that is a file, which is gathered for.
func heard() {
	time.Sleep(gatherTime)
	synctest.Wait()
}

// Events that were confirmed and not sent are sent by the next life; those that were sent are not, when the position
// was saved. What was sent and not saved comes again.
func TestNextLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error { return nil })
		s.put("delivered", 3)
		heard()
		if err := s.courier.save(); err != nil {
			t.Fatal(err)
		}
		s.put("delivered", 2)
		heard()
		s.stop() // without save, as when it is killed
		s.disk = s.disk.Clone()
		s.disk.Restart()
		s.carrier.got = nil
		s.start("file:/x")
		s.put("delivered", 1)
		heard()
		if got := s.carrier.numbers(); !slices.Equal(got, []uint64{4, 5, 6}) {
			t.Errorf("the next life sends %v", got)
		}
		s.stop()
	})
}

// What a file has is made durable once for all that came since the last time, before the position is. If that fails,
// all since then comes again, from a journal that still has it.
func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error { return nil })
		save := func() {
			t.Helper()
			if err := s.courier.save(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		saved := func() uint64 {
			pos, _, err := s.journal.Position(s.courier.sink.Name)
			if err != nil {
				t.Fatal(err)
			}
			return pos
		}
		s.put("delivered", 3)
		heard()
		if s.carrier.settled != 0 {
			t.Errorf("it was settled %d times for three events", s.carrier.settled)
		}
		if save(); s.carrier.settled != 1 || saved() != 4 {
			t.Errorf("it was settled %d times, and the position is %d", s.carrier.settled, saved())
		}
		s.put("delivered", 2)
		heard()
		s.set(func() { s.carrier.unstable = errors.New("no disk") })
		save()
		if got := s.carrier.numbers(); len(got) != 5 {
			t.Errorf("what is not durable comes again at once: %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := s.courier.status(); st.Error != "no disk" || st.Failing.IsZero() {
			t.Errorf("while it keeps nothing: %+v", st)
		}
		if got := s.carrier.numbers(); !slices.Equal(got, []uint64{1, 2, 3, 4, 5, 4, 5}) || saved() != 4 {
			t.Errorf("what is not durable does not come again: %v, position %d", got, saved())
		}
		s.set(func() { s.carrier.unstable = nil })
		if save(); saved() != 6 {
			t.Errorf("the position is %d", saved())
		}
		if st := s.courier.status(); st.Error != "" || !st.Failing.IsZero() {
			t.Errorf("when it works again: %+v", st)
		}
		// What is wanted once more is made durable too, though the position is where it was.
		s.courier.replay(2)
		synctest.Wait()
		n := s.carrier.settled
		if save(); s.carrier.settled != n+1 || saved() != 6 {
			t.Errorf("settled %d times, and not %d; position %d", s.carrier.settled, n+1, saved())
		}
		if save(); s.carrier.settled != n+1 {
			t.Error("it is settled again with nothing in between")
		}
		s.stop()
	})
}

// An event that comes after a while is written to a file at once; those that come soon after it are written together, and
// an order to send something once more does not wait.
func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error { writes.Add(1); return nil })
		see := func(want int64, numbers ...uint64) {
			t.Helper()
			synctest.Wait()
			if got, n := s.carrier.numbers(), writes.Load(); !slices.Equal(got, numbers) || n != want {
				t.Errorf("%v in %d writes", got, n)
			}
		}
		s.put("delivered", 1)
		see(1, 1)
		s.put("delivered", 3)
		see(1, 1)
		time.Sleep(gatherTime)
		see(2, 1, 2, 3, 4)
		s.courier.replay(4)
		see(3, 1, 2, 3, 4, 4)
		time.Sleep(time.Second)
		s.put("delivered", 1)
		see(4, 1, 2, 3, 4, 4, 5)
		s.stop()
	})
}

// Each time that a sink does not keep what it took it is left alone for longer; and the other events since the last time
// come again also when it was a dead letter that somebody had sent again.
func TestUnstable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error { return nil })
		if err := s.courier.dead.add(time.Now(), entries(1), "no"); err != nil {
			t.Fatal(err)
		}
		s.put("delivered", 1)
		heard()
		s.set(func() { s.carrier.unstable = errors.New("no disk") })
		if n, err := s.courier.resend(t.Context()); n != 0 || err == nil {
			t.Errorf("%d letters are taken, %v", n, err)
		}
		began := time.Now()
		for pause := firstPause; pause < 20*time.Second; pause *= 2 {
			n := len(s.carrier.numbers())
			for len(s.carrier.numbers()) == n && time.Since(began) < lastPause {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			if d := time.Since(began); d < pause*3/4 || d > pause*5/4+time.Second {
				t.Errorf("it comes again after %v, the pause is %v", d, pause)
			}
			if began = time.Now(); s.courier.save() != nil {
				t.Error("the journal has failed")
			}
		}
		if pos, _, err := s.journal.Position(s.courier.sink.Name); pos != 1 || err != nil {
			t.Errorf("the position is %d, %v", pos, err)
		}
		s.stop()
	})
}

// What is wanted once more while events are sent comes first, and is what the next life begins with if this one ends.
func TestReplayWhileSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error {
			<-gate
			return nil
		})
		s.put("delivered", 3)
		heard()
		c := s.courier
		c.mu.Lock()
		c.wanted, c.position = 1, 1 // as replay does, in the moment before it interrupts
		c.mu.Unlock()
		c.moved(4, 3)
		if at := c.status().Position; at != 1 {
			t.Errorf("the position is %d", at)
		}
		close(gate)
		s.stop()
	})
}

// What is written to a file is durable when it is settled, and also when the file is left for another before.
func TestFileSettles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	c := newFile(sink(t, "file:"+path), t.Logf)
	if err := c.send(t.Context(), entries(3)); err != nil || !c.dirty {
		t.Fatalf("%v, dirty %v", err, c.dirty)
	}
	if err := c.settle(); err != nil || c.dirty {
		t.Errorf("settled: %v, dirty %v", err, c.dirty)
	}
	if err := c.send(t.Context(), entries(1)); err != nil {
		t.Fatal(err)
	}
	// The disk fails where nobody asks: it is said when somebody does, once.
	c.f.Close()
	c.close()
	if err := c.settle(); err == nil {
		t.Error("what was left without a sync counts as durable")
	}
	if err := c.settle(); err != nil {
		t.Errorf("it is said again: %v", err)
	}
	// Nor does what comes again fill the disk.
	if err := c.send(t.Context(), entries(2)); err != nil {
		t.Fatal(err)
	}
	before := c.had
	if err := c.takeBack(); err != nil || len(readFile(t, path)) != int(before) || before == 0 {
		t.Errorf("%v, %d octets are left, and not %d", err, len(readFile(t, path)), before)
	}
}

// A file that somebody has copied and emptied goes on from its beginning.
func TestFileEmptied(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	c := newFile(sink(t, "file:"+path), t.Logf)
	defer c.close()
	if err := errors.Join(c.send(t.Context(), entries(3)), os.Truncate(path, 0), c.send(t.Context(), entries(1))); err != nil {
		t.Fatal(err)
	}
	if text := readFile(t, path); text == "" || c.size != int64(len(text)) {
		t.Errorf("%q has %d octets, as the carrier has it", text, c.size)
	}
}

// A sink that catches up has no more without a sync than what is looked through after a power cut. If that sync fails nothing
// is written behind what is missing then.
func TestFileCatchesUp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	c := newFile(sink(t, "file:"+path), t.Logf)
	defer c.close()
	large := []eventjournal.Entry{{EventRecord: proto.EventRecord{JSON: bytes.Repeat([]byte("x"), 8<<20)}}}
	for range 2 * tailLook / (8 << 20) {
		if err := c.send(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		if c.size-c.had > maxUnsynced {
			t.Fatalf("%d octets of %d are without a sync", c.size-c.had, c.size)
		}
		if c.size-c.had > maxUnsynced-8<<20 && c.size > tailLook {
			break
		}
	}
	if c.size <= tailLook || c.size >= c.limit || maxUnsynced > tailLook {
		t.Fatalf("%d octets were written", c.size)
	}
	size := c.size
	c.f.Close()
	for range 2 {
		if err := c.send(t.Context(), large); err == nil {
			t.Error("events are behind those that are missing")
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Errorf("%v, %d octets, expected %d", err, info.Size(), size)
	}
	if err := c.settle(); err == nil {
		t.Error("what was left without a sync counts as durable")
	}
	if err := errors.Join(c.send(t.Context(), entries(1)), c.settle()); err != nil {
		t.Error(err)
	}
}

// What a sink refuses for good goes to dead letters, and nothing else does; it is sent again when somebody wants
// that, and what is refused again stays.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad := map[uint64]bool{2: true, 4: true}
		s := newScene(t, "file:/x, name=crm", func(list []eventjournal.Entry) error {
			for i := range list {
				if bad[list[i].Seq] {
					return &refusal{"400 bad event"}
				}
			}
			return nil
		})
		s.carrier.mu.Lock() // so that they come together
		s.put("delivered", 5)
		s.carrier.mu.Unlock()
		synctest.Wait()
		got := s.carrier.numbers()
		slices.Sort(got)
		if !slices.Equal(slices.Compact(got), []uint64{1, 3, 5}) {
			t.Errorf("it got %v", got)
		}
		if st := s.courier.status(); st.Dead != 2 || st.Position != 6 {
			t.Errorf("%+v", st)
		}
		text := readFile(t, deadPath(s.dir, "crm"))
		for _, want := range []string{`"reason":"400 bad event"`, `"number":2`, `"number":4`, `"key":"q"`, `"event":{"schema":1`} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in %s", want, text)
			}
		}
		s.set(func() { delete(bad, 2) })
		if n, err := s.courier.resend(t.Context()); n != 1 || err != nil {
			t.Errorf("sent again: %d, %v", n, err)
		}
		if st := s.courier.status(); st.Dead != 1 {
			t.Errorf("%+v", st)
		}
		s.set(func() { delete(bad, 4) })
		if n, err := s.courier.resend(t.Context()); n != 1 || err != nil {
			t.Errorf("sent again: %d, %v", n, err)
		}
		if _, err := os.Stat(deadPath(s.dir, "crm")); err == nil {
			t.Error("the empty file stays")
		}
		s.stop()
	})
}

// What is sent again does not keep the service from ending.
func TestResendEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "file:/x, name=crm", func([]eventjournal.Entry) error { return &refusal{"400"} })
		s.put("delivered", 3)
		heard()
		ctx, cancel := context.WithCancel(t.Context())
		s.set(func() {
			s.carrier.play = func([]eventjournal.Entry) error {
				cancel()
				return ctx.Err()
			}
		})
		if n, err := s.courier.resend(ctx); n != 0 || err == nil || !strings.Contains(err.Error(), "service ends") {
			t.Errorf("%d were sent, %v", n, err)
		}
		if st := s.courier.status(); st.Dead != 3 {
			t.Errorf("%+v", st)
		}
		s.stop()
	})
}

// When there is no room for dead letters the sink waits, and nothing is lost.
func TestDeadLettersFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error { return &refusal{"no"} })
		s.courier.dead.limit = 100
		s.put("delivered", 2)
		heard()
		if st := s.courier.status(); st.Position != 1 || !strings.Contains(st.Error, "event_dead_letter_limit") {
			t.Errorf("%+v", st)
		}
		s.courier.dead.limit = 1 << 20
		s.courier.retry()
		synctest.Wait()
		if st := s.courier.status(); st.Position != 3 || st.Dead != 2 || st.Error != "" {
			t.Errorf("%+v", st)
		}
		s.stop()
	})
}

// Events are sent once more from a number on, also by a sink that fails.
func TestReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fail := false
		s := newScene(t, "file:/x", func([]eventjournal.Entry) error {
			if fail {
				return errors.New("down")
			}
			return nil
		})
		s.put("delivered", 4)
		heard()
		s.courier.replay(3)
		synctest.Wait()
		if got := s.carrier.numbers(); !slices.Equal(got, []uint64{1, 2, 3, 4, 3, 4}) {
			t.Errorf("it got %v", got)
		}
		s.set(func() { fail = true })
		s.put("delivered", 1)
		heard()
		s.courier.replay(2)
		synctest.Wait()
		s.set(func() { fail = false })
		time.Sleep(time.Hour)
		if got := s.carrier.numbers(); !slices.Equal(got, []uint64{1, 2, 3, 4, 3, 4, 2, 3, 4, 5}) {
			t.Errorf("it got %v", got)
		}
		s.stop()
	})
}

// A line that power has failed in is no dead letter.
func TestTornDeadLetter(t *testing.T) {
	t.Parallel()
	d := &deadLetters{path: deadPath(t.TempDir(), "x"), limit: 1 << 20}
	if err := d.add(time.Now(), entries(2), "no"); err != nil {
		t.Fatal(err)
	}
	whole := readFile(t, d.path)
	if err := os.WriteFile(d.path, []byte(whole+`{"refused`), 0o600); err != nil {
		t.Fatal(err)
	}
	d = &deadLetters{path: d.path, limit: 1 << 20}
	if err := d.add(time.Now(), entries(1), "no"); err != nil {
		t.Fatal(err)
	}
	if n := d.count(); n != 3 || strings.Count(readFile(t, d.path), "\n") != 3 {
		t.Errorf("%d letters", n)
	}
}
