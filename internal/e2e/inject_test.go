package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An injector is a client of the inject service.
type injector struct {
	s       *system
	address string
	token   string
}

// newInjector starts a mail system with the service, and makes a token for senders of from.test.
func newInjector(t *testing.T, main string, o options) *injector {
	t.Helper()
	if err := buildAside("posthaste-inject"); err != nil {
		t.Fatal(err)
	}
	in := &injector{address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	o.main = main + o.main
	o.master += in.address + " inet n - n - - inject\n"
	in.s = newSystem(t, o)
	if !o.unstarted {
		in.makeToken()
	}
	return in
}

// makeToken makes the token that it uses.
func (in *injector) makeToken() {
	in.s.t.Helper()
	out, status := in.s.tool(nil, "token", "add", "-s", "from.test", "-t", "acme", "app")
	if status != 0 {
		in.s.t.Fatalf("token add: %d %s", status, out)
	}
	in.token = strings.TrimSpace(out)
}

// post makes a request. The status is 0 if there is no answer.
func (in *injector) post(path, kind, body string, header ...string) (status int, text string, h http.Header) {
	in.s.t.Helper()
	req, err := http.NewRequest("POST", "http://"+in.address+path, strings.NewReader(body))
	if err != nil {
		in.s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Authorization", "Bearer "+in.token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(b), resp.Header
}

// Mail by HTTP, in each of its forms, arrives as it was meant, and the audit of the log finds all of
// it.
func TestInject(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	in := newInjector(t, next.relayhost(), options{})
	status, text, _ := in.post("/v1/messages", "application/json", `{"from": "Ann <ann@from.test>", "to": ["joe@to.test", {"email": "Jane@to.test", "name": "Jane \u00dc"}],
		"subject": "Gr\u00fc\u00dfe", "text": "Hello\n.\nworld", "html": "<p>Hello", "attachments": [{"filename": "a.bin", "content": "AAEC"}],
		"list_unsubscribe": {"url": "https://from.test/u"}}`)
	var r struct {
		Messages []struct {
			ID         string
			MessageID  string `json:"message_id"`
			Recipients []string
		}
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || len(r.Messages) != 1 || len(r.Messages[0].Recipients) != 2 {
		t.Fatalf("%d %s\n%s", status, text, in.s.log())
	}
	id := r.Messages[0].ID
	in.s.waitLog(`inject\[\d+\]: ` + id + `: client=localhost\[127\.0\.0\.1\], token=app, tenant=acme`)
	in.s.waitLog(id + `: message-id=<` + r.Messages[0].MessageID + `>`)
	in.s.waitLog(id + `: to=<joe@to\.test>.*status=sent`)
	got := next.received()[0].data
	for _, want := range []string{"Received: from localhost (localhost [127.0.0.1])\n", " with HTTP id " + id, "To: joe@to.test, =?utf-8?b?", "List-Unsubscribe-Post: List-Unsubscribe=One-Click\n", "\nHello\n.\nworld\n", "AAEC\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	for _, tt := range []struct{ path, kind, body, id string }{
		{"/v1/messages?from=ann@from.test&to=raw@to.test", "message/rfc822", "From: ann@from.test\nSubject: raw\n\nas it is\n", `"id":"`},
		{"/v1/messages", "application/x-ndjson", strings.Repeat(`{"from": "ann@from.test", "to": ["many@to.test"], "text": "x"}`+"\n", 20), `"id":"`},
		{"/api/inject/v1", "application/json", `{"envelope_sender": "ann@from.test", "recipients": [{"email": "kumo@to.test"}], "content": "From: ann@from.test\n\nx"}`, `"success_count":1`},
		{"/v1/messages", "application/json", fmt.Sprintf(`{"from": "ann@from.test", "to": ["later@to.test"], "text": "x", "send_at": %d}`, time.Now().Add(3*time.Second).Unix()), `"id":"`},
	} {
		if status, text, _ := in.post(tt.path, tt.kind, tt.body); status != 200 || !strings.Contains(text, tt.id) {
			t.Errorf("%s: %d %s", tt.path, status, text)
		}
	}
	in.s.waitLogN(`to=<many@to\.test>.*status=sent`, 20)
	for _, who := range []string{"raw", "kumo", "later"} {
		in.s.waitLog(`to=<` + who + `@to\.test>.*status=sent`)
	}
	if status, text, _ := in.post("/v1/messages", "application/json", `{"from": "ann@else.test", "to": ["x@to.test"], "text": "x"}`); status != 403 {
		t.Errorf("%d %s", status, text)
	}
	if out, status := in.s.tool(nil, "trace", "app"); status != 0 || !strings.Contains(out, "raw@to.test") || !strings.Contains(out, "kumo@to.test") {
		t.Errorf("trace by token: %d %s", status, out)
	}
	if out, status := in.s.tool(nil, "trace", "raw@to.test"); status != 0 || !strings.Contains(out, "localhost[127.0.0.1]") {
		t.Errorf("trace: %d %s", status, out)
	}
	if out, status := in.s.tool(nil, "token", "remove", "app"); status != 0 {
		t.Errorf("token remove: %d %s", status, out)
	}
	in.s.eventually("the token is not good any more", func() bool {
		status, _, _ := in.post("/v1/messages", "application/json", "{}")
		return status == 401
	})
}

// Mail for later waits, says why, and is not sent by a flush of the queue, but by one of it by name. It waits
// longer than the longest back-off, and its lifetime has not begun.
func TestSendAt(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	in := newInjector(t, next.relayhost(), options{})
	at := time.Now().Add(10 * 24 * time.Hour)
	var r struct{ Messages []struct{ ID string } }
	for _, key := range []string{"", "k"} {
		var header []string
		if key != "" {
			header = []string{"Idempotency-Key", key}
		}
		status, text, _ := in.post("/v1/messages", "application/json", fmt.Sprintf(`{"from": "ann@from.test", "to": ["later@to.test"], "text": "x", "send_at": %d}`, at.Unix()), header...)
		if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	id := r.Messages[0].ID
	waits := "to be tried first at " + at.Truncate(time.Second).Format(time.DateTime) + ", as its sender has asked"
	in.s.eventually("mailq says why it waits", func() bool {
		out, _ := in.s.tool(nil, "mailq")
		return strings.Count(out, "("+waits+")") == 2
	})
	if out, status := in.s.tool(nil, "explain", id); status != 0 || !strings.Contains(out, "later@to.test: "+waits) {
		t.Errorf("explain: %d %s", status, out)
	}
	for _, flush := range [][]string{{"postqueue", "-f"}, {"queue", "flush", "--sender", "ann@from.test"}} {
		if out, status := in.s.tool(nil, flush...); status != 0 {
			t.Errorf("%q: %d %s", flush, status, out)
		}
		in.s.mustSend("ann@from.test", []string{"now@to.test"}, "Subject: x\n\nbody\n")
	}
	in.s.waitLogN(`to=<now@to\.test>.*status=sent`, 2)
	if out, status := in.s.tool(nil, "postqueue", "-i", id); status != 0 {
		t.Errorf("postqueue -i: %d %s", status, out)
	}
	in.s.waitLog(id + `: to=<later@to\.test>.*status=sent`)
	if n := len(next.received()); n != 3 {
		t.Errorf("%d messages have arrived, want the two for now and the one that was asked for", n)
	}
}

// With inject_tls the service speaks TLS, with HTTP/2 and without, on the addresses that it has and on a socket of
// this machine; a reload under way loses no request. Without it, it does not serve other machines.
func TestInjectListens(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	in := newInjector(t, next.relayhost(), options{unstarted: true, main: "inject_tls = yes\nsmtpd_tls_chain_files = {dir}/etc/key.pem, {dir}/etc/cert.pem\n",
		master: "inject unix n - n - - inject -o inject_directory={dir}/elsewhere/inject\ntwice unix n - n - - inject\n"})
	makeCertificate(t, in.s.path("etc", "key.pem"), in.s.path("etc", "cert.pem"))
	// A directory that is not below data_directory, of the same owner.
	info, err := os.Stat(in.s.path("data"))
	if err == nil {
		err = os.Mkdir(in.s.path("elsewhere"), 0o755)
	}
	if err == nil {
		err = os.Chown(in.s.path("elsewhere"), int(info.Sys().(*syscall.Stat_t).Uid), -1)
	}
	if err != nil {
		t.Fatal(err)
	}
	in.s.start()
	in.makeToken()
	message := `{"from": "ann@from.test", "to": ["a@to.test"], "text": "x"}`
	client := func(two bool, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: two, DialContext: dial}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: patience}
	}
	clients := map[string]*http.Client{"HTTP/1.1": client(false, nil), "HTTP/2.0": client(true, nil),
		"socket": client(false, func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", in.s.path("spool", "public", "inject"))
		})}
	send := func(name string) {
		req, err := http.NewRequest("POST", "https://"+in.address+"/v1/messages", strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+in.token)
		resp, err := clients[name].Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || name != "socket" && resp.Proto != name {
			t.Errorf("%s: %s %d %v %s", name, resp.Proto, resp.StatusCode, err, b)
		}
	}
	for name := range clients {
		send(name)
	}
	in.s.waitLog(`with HTTPS|status=sent`)
	if !strings.Contains(next.received()[0].data, " with HTTPS id ") {
		t.Errorf("%s", next.received()[0].data)
	}
	if c, err := net.Dial("unix", in.s.path("spool", "public", "twice")); err != nil {
		t.Error(err)
	} else {
		defer c.Close()
	}
	in.s.waitLog(`inject\[\d+\]: fatal: inject_directory = \S+: another service of master\.cf uses it`)
	if out, status := in.s.tool(nil, "reload"); status != 0 {
		t.Errorf("reload: %d %s", status, out)
	}
	for name := range clients {
		clients[name].CloseIdleConnections()
		send(name)
	}
	in.s.stop()
	in.s.configure("inject_tls = no\n", strings.Replace(in.address, "127.0.0.1", "0.0.0.0", 1)+" inet n - n - - inject\n")
	in.s.start()
	go in.post("/v1/messages", "application/json", message) // which has master start it
	in.s.waitLog(`inject\[\d+\]: fatal: service 0\.0\.0\.0:\d+: other machines can reach .*: set inject_tls = yes`)
}

// The service is killed while it queues the messages of requests with a key. Repeated, they are carried
// out once: each recipient has one message, and the answer of the request is the same when it is asked
// for again.
func TestInjectKilled(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	in := newInjector(t, next.relayhost(), options{})
	const rounds, each = 6, 60
	for round := range rounds {
		var to []string
		for i := range each {
			to = append(to, fmt.Sprintf(`"r%d-%d@to.test"`, round, i))
		}
		body := `{"from": "ann@from.test", "individual": true, "text": "x", "to": [` + strings.Join(to, ",") + `]}`
		key := fmt.Sprint("round ", round)
		done := make(chan struct{})
		go func() {
			defer close(done)
			in.post("/v1/messages", "application/json", body, "Idempotency-Key", key)
		}()
		// Kill it when some have been handed over: more in each round, all in the last.
		in.s.waitLogN(`inject\[\d+\]: \w+: client=`, round*each+1+round*(each-1)/(rounds-1))
		in.s.kill("inject")
		<-done
		var first string
		in.s.eventually("the request is answered", func() bool {
			status, text, _ := in.post("/v1/messages", "application/json", body, "Idempotency-Key", key)
			first = text
			return status == 200
		})
		if n := strings.Count(first, `"id":`); n != each {
			t.Errorf("round %d: %d messages: %s", round, n, first)
		}
		if status, text, h := in.post("/v1/messages", "application/json", body, "Idempotency-Key", key); status != 200 || text != first || h.Get("Idempotent-Replayed") != "true" {
			t.Errorf("round %d: %d %s\nbefore: %s", round, status, text, first)
		}
	}
	in.s.eventually("all have arrived", func() bool { return len(next.received()) >= rounds*each })
	in.s.stop()
	got := map[string]int{}
	for _, m := range next.received() {
		for _, to := range m.to {
			got[to]++
		}
	}
	if len(got) != rounds*each || len(next.received()) != rounds*each {
		t.Errorf("%d recipients, %d messages", len(got), len(next.received()))
	}
}
