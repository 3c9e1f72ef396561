package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
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
	out, status := in.s.tool(nil, "token", "add", "-s", "from.test", "-t", "acme", "app")
	if status != 0 {
		t.Fatalf("token add: %d %s", status, out)
	}
	in.token = strings.TrimSpace(out)
	return in
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
}
