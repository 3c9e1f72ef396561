package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/sasl"
)

var (
	consoleIdle    = flag.Duration("console.idle", 0, "for how long TestDeepConsole measures what the console takes while nobody looks")
	consoleDomains = flag.Int("console.domains", 300, "domains that the mail of TestDeepConsole is for")
	consoleActive  = flag.Int("console.active", 20000, "qmgr_message_active_limit of TestDeepConsole; with a fifth of the messages or more, all of these are in memory, and their domains become known")
)

// The console of a mail system with a deep queue: its pages and its API, while somebody looks, and what it takes of the processors, its own
// process and the queue manager's together, while nobody does. What each took is printed:
//
//	go test ./internal/e2e -run TestDeepConsole -queue.n 1000000 -console.domains 100000 -console.active 200000 \
//	    -console.idle 5m -v -timeout 1h
func TestDeepConsole(t *testing.T) {
	t.Parallel()
	if err := buildAside("posthaste-console"); err != nil {
		t.Fatal(err)
	}
	secret, err := sasl.NewSecret("secret of ann")
	if err != nil {
		t.Fatal(err)
	}
	n := *queueSize
	next := newSink(t, nil)
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s := newSystem(t, options{main: next.relayhost() + fmt.Sprintf("qmgr_message_active_limit = %d\n", *consoleActive) + "console_listen = " + address + "\nconsole_user_maps = inline:{ { ann = " + strings.ReplaceAll(secret.String(), "$", "$$") + " } }\nmaillog_file_permissions = 0644\n",
		master: "console unix - - n 60 1 console\n", unstarted: true})
	fillQueue(t, s, n, "Subject: x\r\n\r\nx\r\n", func(i int) deferredMail {
		d := i % *consoleDomains
		return deferredMail{sender: fmt.Sprintf("u%d@s%d.from.test", i, i%50), rcpt: fmt.Sprintf("r%d@d%d.to.test", i, d), host: fmt.Sprintf("mx%d.to.test", d), age: time.Duration(i%36000) * time.Second}
	})
	s.start()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client, token := &http.Client{Jar: jar}, ""
	get := func(path string) (string, time.Duration) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(path, "/api/") {
			req.Header.Set("Authorization", token)
		}
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		took := time.Since(began)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v\n%s", path, resp.StatusCode, err, text)
		}
		return string(text), took
	}
	s.eventually("somebody can log in", func() bool {
		resp, err := client.PostForm("http://"+address+"/login", url.Values{"user": {"ann"}, "password": {"secret of ann"}})
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	resp, err := http.Post("http://"+address+"/api/v1/session", "application/json", strings.NewReader(`{"user":"ann","password":"secret of ann"}`))
	if err != nil {
		t.Fatal(err)
	}
	var session struct{ Token string }
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&session), resp.Body.Close()); err != nil || session.Token == "" {
		t.Fatal(session, err)
	}
	token = "Bearer " + session.Token
	whole, linked := grouped(n)+"</td>", grouped(n)+"</a></td>"
	s.eventually("the first page has counted the queue", func() bool {
		text, _ := get("/")
		return strings.Contains(text, whole)
	})
	if n <= 5**consoleActive {
		s.eventually("all domains are known", func() bool {
			text, _ := get("/queue?queue=deferred")
			return !strings.Contains(text, "not read yet")
		})
	}
	text, _ := get("/queue?queue=deferred")
	if !strings.Contains(text, linked) {
		t.Errorf("the table does not count %s:\n%s", linked, text)
	}
	for _, c := range [][2]string{{"/", whole}, {"/queue?queue=deferred", linked}, {"/queue?side=nexthop", "Age by next hop"}, {"/queue?side=sender", "Age by"}, {"/messages?queue=deferred", "Queue ID"},
		{"/messages?domain=d4.to.test", "Queue ID"}, {"/messages?queue=deferred&domain=d4.to.test&older=80m&younger=160m", "Messages"}, {"/messages?sender=@s4.from.test", "Queue ID"}, {"/messages?waits-for=smtp:d4.to.test", "Messages"}, {"/messages?source=none", "Messages"}, {"/messages?queue=hold", "Messages"}, {"/search?q=u4@s4.from.test", "Queue ID"}, {"/destination/d4.to.test", "d4.to.test"}, {"/search", "Search"}, {"/search?q=@d4.to.test", "d4.to.test"}, {"/api/v1/now", `"queues"`}, {"/api/v1/system", `"disks"`}, {"/api/v1/shape?queue=deferred", "to.test"},
		{"/api/v1/messages?queue=deferred", `"queue_id"`}, {"/api/v1/messages?domain=d4.to.test", `"queue_id"`}, {"/api/v1/destinations/d4.to.test", `"explanation"`}} {
		path, want := c[0], c[1]
		var all []time.Duration
		size, spent := 0, time.Duration(0)
		for _, name := range []string{"console", "qmgr", "cleanup"} {
			spent -= processorTime(t, s.processes(name)[0])
		}
		for range 21 {
			text, took := get(path)
			if all = append(all, took); !strings.Contains(text, want) {
				t.Fatalf("%s has no %s:\n%.3000s", path, want, text)
			}
			size = len(text)
		}
		for _, name := range []string{"console", "qmgr", "cleanup"} {
			spent += processorTime(t, s.processes(name)[0])
		}
		slices.Sort(all)
		t.Logf("%s: %v, at most %v; %v of a processor for each; %d octets", path, all[len(all)/2].Round(10*time.Microsecond), all[len(all)-1].Round(10*time.Microsecond), (spent / 21).Round(100*time.Microsecond), size)
	}
	for _, name := range []string{"console", "qmgr"} {
		t.Logf("%s: %v", name, memory(t, s.processes(name)[0]))
	}
	if *consoleIdle == 0 {
		return
	}
	names := []string{"console", "qmgr"}
	before := make([]time.Duration, len(names))
	for i, name := range names {
		before[i] = processorTime(t, s.processes(name)[0])
	}
	time.Sleep(*consoleIdle) // it is what is measured
	for i, name := range names {
		pid := s.processes(name)[0]
		took := processorTime(t, pid) - before[i]
		t.Logf("%s: %v of a processor in %v, %.2f %%; %v", name, took, *consoleIdle, 100*took.Seconds()/consoleIdle.Seconds(), memory(t, pid))
	}
}

// grouped is a number as pages have it.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// processorTime is what a process has taken of the processors, in hundredths of a second.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields, total := strings.Fields(rest), 0
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		total += ticks
	}
	return time.Duration(total) * 10 * time.Millisecond
}
