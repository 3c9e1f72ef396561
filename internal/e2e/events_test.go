package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An eventLine is what a test looks at of an event.
type eventLine struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	QueueID   string    `json:"queue_id"`
	Recipient string    `json:"recipient"`
	NextHop   string    `json:"next_hop"`
	DSN       string    `json:"dsn"`
	Reply     string    `json:"reply"`
	Transport string    `json:"transport"`
	Attempt   int       `json:"attempt"`
	Size      int       `json:"size"`
	NewID     string    `json:"new_queue_id"`
	Provider  string    `json:"provider"`
	Time      time.Time `json:"time"`
}

// newEvents starts a mail system that writes its events to a file.
func newEvents(t *testing.T, main string, o options) *system {
	t.Helper()
	if err := buildAside("posthaste-events"); err != nil {
		t.Fatal(err)
	}
	o.main = main + "event_sinks = file:{dir}/data/events.json" + o.main + "\n"
	o.master += "events unix - - n 60 1 events\n"
	return newSystem(t, o)
}

// events are those in the file, as often as they are there.
func (s *system) events() (list []eventLine) {
	s.t.Helper()
	text, err := os.ReadFile(s.path("data", "events.json"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e eventLine
		if err := json.Unmarshal(line, &e); err != nil {
			if bytes.HasSuffix(line, []byte("\n")) {
				s.t.Fatalf("%s: %v", line, err)
			}
			continue // it is being written
		}
		list = append(list, e)
	}
	return list
}

// waitEvent waits for an event of a kind with a recipient, or of a queue ID.
func (s *system) waitEvent(kind, about string) (found eventLine) {
	s.t.Helper()
	s.eventually(kind+" "+about, func() bool {
		for _, e := range s.events() {
			if e.Kind == kind && (e.Recipient == about || e.QueueID == about) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// What becomes of mail is told to a file, and to a webhook that takes only some kinds; a webhook that refuses gets
// dead letters again when that is wanted.
func TestEvents(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var posted []string
	refuse := true
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			http.Error(w, "not now", http.StatusBadRequest)
			return
		}
		var list []eventLine
		if err := json.Unmarshal(body, &list); err != nil || r.Header.Get("webhook-signature") == "" {
			t.Errorf("%s: %v, %v", body, err, r.Header)
		}
		for _, e := range list {
			posted = append(posted, e.Kind+" "+e.Recipient)
		}
	}))
	defer hook.Close()
	next := newSink(t, func(cmd string) string {
		switch {
		case strings.HasPrefix(cmd, "RCPT TO:<never@"):
			return "550 5.1.1 no such user"
		case strings.HasPrefix(cmd, "RCPT TO:<later@"):
			return "450 4.2.1 not now"
		}
		return ""
	})
	s := newEvents(t, next.relayhost()+"bounce_class_files = builtin\nsmtpd_recipient_restrictions = check_recipient_access inline:{ {refused@to.test = REJECT no} }, permit_mynetworks, reject\n",
		options{unstarted: true, main: fmt.Sprintf(", { webhook:%s/x, name=crm, events=bounced, secret_file={dir}/secret }\n", hook.URL)})
	s.write("secret", "0123456789abcdef0123456789abcdef")
	s.start()
	send := func(to string) error {
		return s.send("ann@from.test", []string{to + "@to.test"}, "Subject: x\r\n\r\nx\r\n")
	}
	for _, to := range []string{"joe", "never", "later"} {
		if err := send(to); err != nil {
			t.Fatal(err)
		}
	}
	if err := send("refused"); err == nil {
		t.Fatal("it is not refused")
	}
	s.waitEvent("rejected", "refused@to.test")
	if e := s.waitEvent("delivered", "joe@to.test"); e.DSN != "2.0.0" || e.Transport != "smtp" || e.Attempt != 1 || e.Size == 0 || e.NextHop == "" {
		t.Errorf("delivered: %+v", e)
	}
	bounced := s.waitEvent("bounced", "never@to.test")
	if bounced.DSN != "5.1.1" || !strings.Contains(bounced.Reply, "no such user") {
		t.Errorf("bounced: %+v", bounced)
	}
	if e := s.waitEvent("returned", bounced.QueueID); e.NewID == "" {
		t.Errorf("returned: %+v", e)
	} else if e = s.waitEvent("received", e.NewID); e.NewID != "" {
		t.Errorf("received: %+v", e)
	}
	deferred := s.waitEvent("deferred", "later@to.test")
	for _, step := range [][2]string{{"-h", "held"}, {"-H", "released"}, {"-e", ""}} {
		if out, status := s.tool(nil, "postsuper", step[0], deferred.QueueID); status != 0 {
			t.Fatalf("postsuper %s: %s", step[0], out)
		}
		if step[1] != "" {
			s.waitEvent(step[1], deferred.QueueID)
		}
	}
	if out, status := s.tool(nil, "flush"); status != 0 {
		t.Fatal(out)
	}
	if e := s.waitEvent("expired", "later@to.test"); e.QueueID != deferred.QueueID || e.Attempt == 0 {
		t.Errorf("expired: %+v", e)
	}
	if err := send("later"); err != nil {
		t.Fatal(err)
	}
	again := ""
	s.eventually("another message is deferred", func() bool {
		for _, e := range s.events() {
			if e.Kind == "deferred" && e.QueueID != deferred.QueueID && e.Recipient == "later@to.test" {
				again = e.QueueID
			}
		}
		return again != ""
	})
	if out, status := s.tool(nil, "postsuper", "-d", again); status != 0 {
		t.Fatal(out)
	}
	s.waitEvent("deleted", again)

	s.eventually("the webhook has refused the event", func() bool {
		out, status := s.tool(nil, "events", "dead", "crm")
		return status == 0 && strings.Contains(out, `"reason":"the server said 400 Bad Request: not now"`) && strings.Contains(out, bounced.QueueID)
	})
	mu.Lock()
	refuse = false
	mu.Unlock()
	if out, status := s.tool(nil, "events", "resend", "crm"); status != 0 || out != "crm: 1 dead letters sent\n" {
		t.Errorf("resend: %d %s", status, out)
	}
	mu.Lock()
	if !slices.Equal(posted, []string{"bounced never@to.test"}) {
		t.Errorf("the webhook got %q", posted)
	}
	mu.Unlock()
	if out, status := s.tool(nil, "events", "replay", "crm"); status != 0 {
		t.Errorf("replay: %d %s", status, out)
	}
	s.eventually("the event comes once more", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) == 2
	})
	if _, status := s.tool(nil, "events", "retry", "nobody"); status != 66 {
		t.Errorf("a sink that is none: status %d", status)
	}
	s.eventually("both sinks have all", func() bool {
		out, status := s.tool(nil, "events", "status", "-j")
		var st struct {
			Sinks []struct{ Lag, Dead, Lost int }
		}
		if err := json.Unmarshal([]byte(out), &st); status != 0 || err != nil || len(st.Sinks) != 2 {
			t.Fatalf("status: %d %s", status, out)
		}
		for _, sink := range st.Sinks {
			if sink.Lag != 0 || sink.Dead != 0 || sink.Lost != 0 {
				return false
			}
		}
		return true
	})
}

// Whatever process is killed, every message that has left the queue has its events, and they begin with that of its
// coming. None is left out when the mail system is reloaded, stopped and started.
func TestEventsKilled(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newEvents(t, next.relayhost()+quick, options{})
	load := startLoad(s, 6)
	for _, victim := range []string{"events", "cleanup", "qmgr", "smtp", "events", "smtpd", "cleanup"} {
		load.waitAccepted(60)
		s.kill(victim)
	}
	load.waitAccepted(60)
	if out, status := s.tool(nil, "reload"); status != 0 {
		t.Fatalf("reload: %s", out)
	}
	load.waitAccepted(60)
	load.end()
	s.allArrived(next, load)
	s.accounted()

	load = startLoad(s, 6)
	load.waitAccepted(60)
	s.killAll()
	load.end()
	s.start()
	s.allArrived(next, load)
	s.accounted()
	if strings.Contains(s.log(), "events are lost") {
		t.Error("events are lost")
	}
}

// accounted compares the events with the log: each message that was removed was received first, and delivered.
func (s *system) accounted() {
	s.t.Helper()
	removed := regexp.MustCompile(`(?m)qmgr\[\d+\]: (\w+): removed$`)
	var wrong []string
	defer func() {
		if len(wrong) > 0 {
			s.t.Logf("%d messages without all of their events: %.200q", len(wrong), wrong)
		}
	}()
	s.eventually("the events of all messages that have left the queue", func() bool {
		kinds := map[string][]string{}
		for _, e := range s.events() {
			kinds[e.QueueID] = append(kinds[e.QueueID], e.Kind)
		}
		wrong = wrong[:0]
		n := 0
		for _, g := range removed.FindAllStringSubmatch(s.log(), -1) {
			n++
			if k := kinds[g[1]]; len(k) == 0 || k[0] != "received" || !slices.Contains(k, "delivered") {
				wrong = append(wrong, fmt.Sprint(g[1], k))
			}
		}
		return len(wrong) == 0 && n > 0
	})
}

// While the journal hangs or is dead, operators can delete and hold mail. What was deleted is delivered to nobody, also when
// that was ordered before the journal had heard of the message; what is held waits; and when the journal is back it gets the
// events of each message in their order.
func TestEventsOrderedWithoutJournal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout string
		// away takes the journal away, and back brings it back.
		away func(t *testing.T, s *system) (back func())
	}{
		// Orders wait for the journal, as the queue manager has not heard of the mail.
		"hangs for a moment": {"300s", hangJournal},
		// Mail goes on without it, and so do orders.
		"hangs": {"1s", hangJournal},
		"dead": {"1s", func(t *testing.T, s *system) (back func()) {
			// What the master starts in its place cannot read its journal.
			dir := s.path("data", "events")
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.kill("events")
			return func() {
				if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
					t.Error(err)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			orderedWithoutJournal(t, c.timeout, c.away)
		})
	}
}

// hangJournal has the events service do nothing until back is called.
func hangJournal(t *testing.T, s *system) (back func()) {
	pids := s.processes("events")
	if len(pids) == 0 {
		t.Fatal("there is no events service")
	}
	signal(pids, syscall.SIGSTOP)
	goOn := sync.OnceFunc(func() { signal(pids, syscall.SIGCONT) })
	t.Cleanup(goOn)
	return goOn
}

func orderedWithoutJournal(t *testing.T, timeout string, away func(*testing.T, *system) (back func())) {
	var open atomic.Bool
	next := newSink(t, func(cmd string) string {
		if !open.Load() && strings.HasPrefix(cmd, "RCPT TO:") {
			return "450 4.2.1 not now"
		}
		return ""
	})
	s := newEvents(t, next.relayhost()+"event_timeout = "+timeout+"\n", options{})
	send := func(to string) {
		t.Helper()
		if err := s.send("ann@from.test", []string{to + "@to.test"}, "Subject: x\r\n\r\nx\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	send("before")
	s.waitEvent("deferred", "before@to.test")
	back := away(t, s)
	ids := map[string]string{}
	for _, to := range []string{"deleted", "held", "kept"} {
		send(to)
	}
	for _, to := range []string{"deleted", "held", "kept"} {
		// The clients were told 250: the log has what cleanup took from smtpd, in the order of the commands.
		line := s.waitLogN(`cleanup\[\d+\]: (\w+): message-id=`, len(ids)+2)[len(ids)+1]
		ids[to] = regexp.MustCompile(`: (\w+): message-id=`).FindStringSubmatch(line)[1]
	}
	var orders sync.WaitGroup
	for _, order := range [][2]string{{"-d", "deleted"}, {"-h", "held"}} {
		orders.Go(func() {
			if out, status := s.tool(nil, "postsuper", order[0], ids[order[1]]); status != 0 || !strings.Contains(out, "1 message") {
				t.Errorf("postsuper %s: %d %s", order[0], status, out)
			}
		})
	}
	// With a long event_timeout they wait until the journal is back. Of mail that comes meanwhile clients hear 250.
	for range 5 {
		send("kept")
	}
	if timeout == "1s" {
		orders.Wait()
	}
	back()
	orders.Wait()
	s.waitEvent("deleted", ids["deleted"])
	s.waitEvent("held", ids["held"])
	open.Store(true)
	if out, status := s.tool(nil, "flush"); status != 0 {
		t.Fatal(out)
	}
	s.waitEvent("delivered", ids["kept"])
	s.waitEvent("delivered", "before@to.test")
	s.eventually("all that is not held is delivered", func() bool { return len(next.received()) == 7 })
	if out, status := s.tool(nil, "postsuper", "-H", ids["held"]); status != 0 {
		t.Fatal(out)
	}
	s.waitEvent("released", ids["held"])
	if out, status := s.tool(nil, "flush"); status != 0 {
		t.Fatal(out)
	}
	s.waitEvent("delivered", ids["held"])
	for _, m := range next.received() {
		if slices.Contains(m.to, "deleted@to.test") {
			t.Error("what was deleted is delivered")
		}
	}
	// Once in the queue's life, and in their order: that in which they come, or where mail has gone on without the journal that
	// of their times. Attempts may have been made before the orders came.
	all := s.events()
	if timeout == "1s" {
		slices.SortStableFunc(all, func(a, b eventLine) int { return a.Time.Compare(b.Time) })
	}
	for to, want := range map[string]string{"deleted": "received deleted", "held": "received held released delivered", "kept": "received delivered"} {
		var kinds []string
		for _, e := range all {
			if e.QueueID == ids[to] && e.Kind != "deferred" {
				kinds = append(kinds, e.Kind)
			}
		}
		if got := strings.Join(kinds, " "); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
	if strings.Contains(s.log(), "events are lost") {
		t.Error("events are lost")
	}
}

// Without the events service mail goes on: it waits for the journal once. What was told meanwhile comes when the service
// is there, and a webhook that does not answer holds up neither mail nor the file.
func TestEventsWithoutService(t *testing.T) {
	t.Parallel()
	if err := buildAside("posthaste-events"); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer hook.Close()
	defer close(release)
	next := newSink(t, nil)
	main := next.relayhost() + "event_timeout = 1s\nevent_sinks = file:{dir}/data/events.json { webhook:" + hook.URL + ", timeout=600s }\n"
	s := newSystem(t, options{main: main})
	send := func(to string) {
		t.Helper()
		if err := s.send("ann@from.test", []string{to}, "Subject: x\r\n\r\nx\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	send("one@to.test")
	s.waitLog(`to=<one@to.test>.*status=sent`)
	s.waitLog(`cleanup\[\d+\]: warning: the events service does not answer; mail goes on`)
	if out, status := s.tool(nil, "events", "status"); status != 69 || !strings.Contains(out, "has master.cf the service events?") {
		t.Errorf("events status: %d %s", status, out)
	}
	if out, status := s.tool(nil, "check"); status != 0 || !strings.Contains(out, "event_sinks: master.cf has no service events") {
		t.Errorf("check: %d %s", status, out)
	}
	s.configure(main, "events unix - - n 60 1 events\n")
	if out, status := s.tool(nil, "reload"); status != 0 {
		t.Fatal(out)
	}
	s.eventually("the file has the events of mail that is sent now", func() bool {
		send("two@to.test")
		for _, e := range s.events() {
			if e.Kind == "delivered" && e.Recipient == "two@to.test" {
				return true
			}
		}
		return false
	})
	out, status := s.tool(nil, "events", "status", "-j")
	var st struct {
		Sinks []struct {
			Name string
			Lag  int
		}
	}
	if err := json.Unmarshal([]byte(out), &st); status != 0 || err != nil || len(st.Sinks) != 2 || st.Sinks[1].Name != "webhook" || st.Sinks[1].Lag == 0 {
		t.Errorf("status: %d %s", status, out)
	}
}
