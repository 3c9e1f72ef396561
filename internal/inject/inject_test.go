package inject

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	netmail "net/mail"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// A message in JSON becomes one in the queue, with its envelope, and the answer names it.
func TestMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	status, r, text := w.send(`{"from": {"email": "ann@from.test", "name": "Ann, Üx"}, "envelope_from": "bounce@from.test", "to": ["Joe <joe@to.test>", "joe@to.test"], "cc": ["c@to.test"],
		"bcc": ["b@to.test"], "reply_to": "r@else.test", "subject": "Grüße an alle, die es wissen wollen, und an die anderen auch, versteht sich", "text": "a\nb\r\nc", "headers": {"X-A": "1"}}`)
	if status != 200 || len(r.Messages) != 1 || len(r.Refused) != 0 {
		t.Fatalf("%d %s", status, text)
	}
	g := w.mails()[0]
	if string(g.Envelope.ID) != r.Messages[0].ID || r.Messages[0].MessageID != r.Messages[0].ID+"@mta.test" || g.Envelope.Sender != "bounce@from.test" || g.State != nil ||
		g.Envelope.SASL.Username != "app" || g.Envelope.Client.Addr != "127.0.0.1" || g.Envelope.RewriteContext != "local" || g.Flags != proto.SubmitFilter {
		t.Errorf("%+v", g.Envelope)
	}
	var to []string
	for _, x := range g.Envelope.Recipients {
		to = append(to, x.Address+" "+x.ORCPT)
	}
	if !reflect.DeepEqual(to, []string{"joe@to.test rfc822;joe@to.test", "c@to.test rfc822;c@to.test", "b@to.test rfc822;b@to.test"}) {
		t.Errorf("%q", to)
	}
	m, err := netmail.ReadMessage(strings.NewReader(g.text))
	if err != nil {
		t.Fatal(err)
	}
	dec := new(mime.WordDecoder)
	subject, _ := dec.DecodeHeader(m.Header.Get("Subject"))
	from, err := m.Header.AddressList("From")
	if err != nil || from[0].Name != "Ann, Üx" || from[0].Address != "ann@from.test" {
		t.Errorf("%v %v", from, err)
	}
	if subject != "Grüße an alle, die es wissen wollen, und an die anderen auch, versteht sich" || m.Header.Get("Cc") != "c@to.test" || strings.Contains(g.text, "b@to.test") ||
		m.Header.Get("Reply-To") != "r@else.test" || m.Header.Get("X-A") != "1" || !strings.Contains(m.Header.Get("Received"), "with HTTP id "+r.Messages[0].ID) {
		t.Errorf("%s", g.text)
	}
	if !strings.HasSuffix(g.text, "\r\n\r\na\r\nb\r\nc\r\n") || strings.Count(g.text, "\n") != strings.Count(g.text, "\r\n") {
		t.Errorf("%q", g.text)
	}
	for line := range strings.SplitSeq(g.text, "\r\n") {
		if len(line) > 78 && !strings.Contains(line, "(localhost [") {
			t.Errorf("a long line: %q", line)
		}
	}
	if log := w.logged(); !strings.Contains(log, r.Messages[0].ID+": client=localhost[127.0.0.1], token=app, tenant=acme") {
		t.Error(log)
	}
}

// walk lists the leaves of a message: their types, and their content as it is for a reader.
func walk(t *testing.T, kind, encoding string, r io.Reader) (leaves []string) {
	t.Helper()
	mediaType, params, err := mime.ParseMediaType(kind)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(mediaType, "multipart/") {
		leaves = append(leaves, "("+mediaType)
		for p := multipart.NewReader(r, params["boundary"]); ; {
			part, err := p.NextRawPart()
			if err == io.EOF {
				return append(leaves, ")")
			}
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			if d := part.Header.Get("Content-Disposition"); d != "" {
				how, params, err := mime.ParseMediaType(d)
				if err != nil {
					t.Fatal(err)
				}
				name = " " + how + " " + params["filename"] + " " + part.Header.Get("Content-ID")
			}
			sub := walk(t, part.Header.Get("Content-Type"), part.Header.Get("Content-Transfer-Encoding"), part)
			sub[0] += name
			leaves = append(leaves, sub...)
		}
	}
	text, err := io.ReadAll(decoderOf(encoding, r))
	if err != nil {
		t.Fatal(err)
	}
	return []string{mediaType + " " + encoding + " " + string(text)}
}

// The structure of a composed message is what mail readers expect, and its parts are what they were.
func TestStructure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("x", 1200)
	for _, tt := range []struct {
		name, body string
		want       []string
	}{
		{"text", `"text": "a"`, []string{"text/plain 7bit a\r\n"}},
		{"utf8", `"text": "Viele Grüße = alles\n"`, []string{"text/plain quoted-printable Viele Grüße = alles\r\n\r\n"}},
		{"chinese", `"text": "你好世界"`, []string{"text/plain base64 你好世界"}},
		{"long", `"text": "` + long + `"`, []string{"text/plain quoted-printable " + long + "\r\n"}},
		{"html", `"html": "<p>"`, []string{"text/html 7bit <p>\r\n"}},
		{"both", `"text": "a", "html": "<p>"`, []string{"(multipart/alternative", "text/plain 7bit a\r\n", "text/html 7bit <p>\r\n", ")"}},
		{"all", `"text": "a", "html": "<p>", "inline": [{"content_id": "i1", "content_type": "image/png", "content": "AAEC"}], "attachments": [{"filename": "ü b.bin", "content": "QUJD\nREVG"}]`,
			[]string{"(multipart/mixed", "(multipart/alternative", "text/plain 7bit a\r\n", "(multipart/related", "text/html 7bit <p>\r\n", "image/png base64 \x00\x01\x02 inline  <i1>", ")", ")",
				"application/octet-stream base64 ABCDEF attachment ü b.bin ", ")"}},
		{"only a file", `"attachments": [{"content": "QQ=="}]`, []string{"(multipart/mixed", "application/octet-stream base64 A attachment  ", ")"}},
		{"empty", `"text": ""`, []string{"text/plain 7bit "}},
	} {
		status, _, text := w.send(`{"from": "ann@from.test", "to": ["joe@to.test"], ` + tt.body + `}`)
		if status != 200 {
			t.Errorf("%s: %d %s", tt.name, status, text)
			continue
		}
		all := w.mails()
		m, err := netmail.ReadMessage(strings.NewReader(all[len(all)-1].text))
		if err != nil {
			t.Fatal(err)
		}
		if got := walk(t, m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %q\nwant %q\n%s", tt.name, got, tt.want, all[len(all)-1].text)
		}
	}
}

// Each recipient with variables gets a message of its own; what is wrong with one does not keep the others.
func TestVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	status, r, text := w.send(`{"from": "ann@from.test", "subject": "For {{name}}", "text": "{{ name }} {{n.m}} {not}", "html": "{{name}} {{{name}}}", "variables": {"name": "all", "n": {"m": 1.50}},
		"headers": {"X-Name": "{{name}}"}, "list_unsubscribe": {"url": "https://x.test/u?n={{name}}"},
		"to": [{"email": "a@to.test", "variables": {"name": "<A & B>"}}, "b@to.test", {"email": "c@to.test", "variables": {"name": "x\r\nBcc: evil@to.test"}}, "not an address"]}`)
	if status != 200 || len(r.Messages) != 2 || len(r.Refused) != 2 {
		t.Fatalf("%d %s", status, text)
	}
	for _, x := range r.Refused {
		if x.Status != 422 || x.Recipient == "c@to.test" && !strings.Contains(x.Detail, "control character") {
			t.Errorf("%+v", x)
		}
	}
	for _, g := range w.mails() {
		want := []string{"To: b@to.test\r\n", "Subject: For all\r\n", "\r\nall 1.50 {not}\r\n", "\r\nall all\r\n", "<https://x.test/u?n=all>"}
		if g.Envelope.Recipients[0].Address == "a@to.test" {
			want = []string{"To: a@to.test\r\n", "Subject: For <A & B>\r\n", "X-Name: <A & B>\r\n", "\r\n<A & B> 1.50 {not}\r\n", "\r\n&lt;A &amp; B&gt; <A & B>\r\n", "<https://x.test/u?n=%3CA+%26+B%3E>",
				"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"}
		}
		for _, s := range want {
			if !strings.Contains(g.text, s) || len(g.Envelope.Recipients) != 1 {
				t.Errorf("%q is not in\n%s", s, g.text)
			}
		}
	}
	if status, r, text := w.send(`{"from": "ann@from.test", "to": [{"email": "a@to.test", "variables": {}}], "text": "{{gone}}"}`); status != 422 || !strings.Contains(text, `the variable \"gone\" has no value`) {
		t.Errorf("%d %+v %s", status, r, text)
	}
}

// A token may send as its own senders only, whatever form the message has.
func TestSenders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, body := range []string{
		`{"from": "ann@else.test", "to": ["a@to.test"], "text": "x"}`,
		`{"from": "ann@from.test", "envelope_from": "ann@else.test", "to": ["a@to.test"], "text": "x"}`,
		`{"from": "ann@from.test", "envelope_from": "", "to": ["a@to.test"], "text": "x"}`,
		`{"from": "ann@sub.from.test", "to": ["a@to.test"], "text": "x"}`,
		`{"envelope_from": "ann@from.test", "to": ["a@to.test"], "raw": "From: x@else.test\n\nx"}`,
		`{"envelope_from": "ann@from.test", "to": ["a@to.test"], "raw": "From: ann@from.test, x@else.test\n\nx"}`,
		`{"envelope_from": "ann@from.test", "to": ["a@to.test"], "raw": "From: ann@from.test\nSender: <x@else.test>\n\nx"}`,
		`{"envelope_from": "ann@from.test", "to": ["a@to.test"], "raw": "from :\n ann <x@else.test>\n\nx"}`,
	} {
		if status, _, text := w.send(body); status != 403 || !strings.Contains(text, "may not send as") {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	for query, body := range map[string]string{
		"from=x@else.test&to=a@to.test":   "From: ann@from.test\n\nx",
		"from=&to=a@to.test":              "From: ann@from.test\n\nx",
		"from=ann@from.test&to=a@to.test": "From: ann@else.test\n\nx",
	} {
		if status, text, _ := w.post("/v1/messages?"+query, "message/rfc822", body); status != 403 {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if status, text, _ := w.post("/api/inject/v1", "application/json", `{"envelope_sender": "x@else.test", "recipients": [{"email": "a@to.test"}], "content": "From: ann@from.test\n\nx"}`); status != 403 {
		t.Errorf("%d %s", status, text)
	}
	if len(w.mails()) != 0 {
		t.Errorf("%d were queued", len(w.mails()))
	}
	if !strings.Contains(w.logged(), "NOQUEUE: refused: client=localhost[127.0.0.1], token=app, request=POST /v1/messages, status=403: ") {
		t.Error(w.logged())
	}
	w.token = w.newToken(apitoken.Token{Name: "null", Roles: []string{apitoken.Inject}, Senders: []string{"<>", "from.test"}})
	if status, _, text := w.send(`{"from": "ann@from.test", "envelope_from": "", "to": ["a@to.test"], "text": "x"}`); status != 200 || w.mails()[0].Envelope.Sender != "" {
		t.Errorf("%d %s", status, text)
	}
}

// A request without a token, with another's, or from elsewhere is refused before anything is read.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	looker := w.newToken(apitoken.Token{Name: "looker", Roles: []string{apitoken.Look}})
	for field, want := range map[string]int{"": 401, "Bearer": 401, "Bearer pht_wrong": 401, "Bearer " + looker: 403, "Basic eDp5": 401, "Digest x": 401} {
		status, text, h := w.post("/v1/messages", "application/json", hello, "Authorization", field)
		if status != want || !strings.Contains(text, `"detail"`) || h.Get("Content-Type") != "application/problem+json" || (want == 401) != (h.Get("WWW-Authenticate") != "") {
			t.Errorf("%q: %d %s", field, status, text)
		}
	}
	for path, want := range map[string]int{"/": 404, "/v1/messages/": 404, "/v2/messages": 404} {
		if status, text, _ := w.post(path, "application/json", hello); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if err := w.server.tokens.Remove("app"); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Second)
	if status, text, _ := w.post("/v1/messages", "application/json", hello); status != 401 {
		t.Errorf("a token that was removed: %d %s", status, text)
	}
	if len(w.mails()) != 0 {
		t.Error("something was queued")
	}
}

// A message in message/rfc822 goes on as it is, with line ends of CRLF.
func TestRaw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	big := strings.Repeat(strings.Repeat("y", 100)+"\n", 5000)
	for _, tt := range []struct{ in, want string }{
		{"From: ann@from.test\nMessage-ID: <x@y>\n\nhello\n.\nbare\rcr", "From: ann@from.test\r\nMessage-ID: <x@y>\r\n\r\nhello\r\n.\r\nbare\rcr\r\n"},
		{"From: ann@from.test\r\n\r\nhello\r\n", "From: ann@from.test\r\n\r\nhello\r\n"},
		{"From: ann@from.test\r\n\r\nmixed\nlines\r\n\n\r\nend", "From: ann@from.test\r\n\r\nmixed\r\nlines\r\n\r\n\r\nend\r\n"},
		{"From: ann@from.test", "From: ann@from.test\r\n"},
		{"From: ann@from.test\n\n" + big, "From: ann@from.test\r\n\r\n" + strings.ReplaceAll(big, "\n", "\r\n")},
	} {
		for _, key := range []string{"", fmt.Sprintf("key of %x", sha256.Sum256([]byte(tt.in)))} {
			h := []string(nil)
			if key != "" {
				h = []string{"Idempotency-Key", key}
			}
			status, text, _ := w.post("/v1/messages?from=ann@from.test&to=a@to.test&to=b@to.test", "message/rfc822", tt.in, h...)
			var r Result
			if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || len(r.Messages) != 1 {
				t.Fatalf("%d %s", status, text)
			}
			all := w.mails()
			g := all[len(all)-1]
			_, content, _ := strings.Cut(g.text, "From: ")
			if "From: "+content != tt.want || len(g.Envelope.Recipients) != 2 || !strings.HasPrefix(g.text, "Received: ") {
				t.Errorf("%.200q: %.200q", tt.in, g.text)
			}
			if strings.Contains(tt.in, "<x@y>") != (r.Messages[0].MessageID == "x@y") {
				t.Errorf("%+v", r)
			}
		}
	}
	for body, want := range map[string]string{"": "no header", "hello\n": "no header", "X: 1\n\n": "no From", "From: a@from.test\nFrom: b@from.test\n\n": "two fields", "From: ann@from.test\rBcc: x\n\n": "CR",
		"From: ann@from.test\x00\n\n": "NUL", " From: ann@from.test\n\n": "no header field"} {
		if status, text, _ := w.post("/v1/messages?from=ann@from.test&to=a@to.test", "message/rfc822", body); status != 422 || !strings.Contains(text, want) && want != "no header" {
			t.Errorf("%q: %d %s", body, status, text)
		}
	}
	status, text, _ := w.post("/v1/messages", "message/rfc822", "From: ann@from.test\n\nx", "X-Envelope-From", "<ann@from.test>", "X-Envelope-To", "a@to.test, nobody")
	if status != 200 || !strings.Contains(text, `"recipient":"nobody"`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := w.post("/v1/messages?from=ann@from.test&to=a@to.test", "message/rfc822", "From: ann@from.test\n\n"+strings.Repeat("z", 2<<20)); status != 413 {
		t.Errorf("%d %s", status, text)
	}
}

// A batch has a result for each message, in order; one that is refused keeps no other.
func TestBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := `{"from": "ann@else.test", "to": ["x@to.test"], "text": "x"}`
	for _, tt := range []struct{ kind, body string }{
		{"application/json", " [" + hello + ",\n" + bad + "," + hello + "] "},
		{"application/x-ndjson", hello + "\n" + bad + "\n\n" + hello},
		{"application/x-ndjson", "[" + hello + "," + bad + "," + hello + "]"},
	} {
		status, text, _ := w.post("/v1/messages", tt.kind, tt.body)
		var r Results
		if tt.kind == "application/json" {
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatal(err)
			}
		} else {
			for line := range strings.Lines(text) {
				x := new(Result)
				if err := json.Unmarshal([]byte(line), x); err != nil {
					t.Fatal(err)
				}
				r.Results = append(r.Results, x)
			}
		}
		if status != 200 || len(r.Results) != 3 || r.Results[0].Status != 200 || r.Results[1].Status != 403 || r.Results[2].Status != 200 || r.Results[0].Messages[0].ID == r.Results[2].Messages[0].ID {
			t.Errorf("%d %s", status, text)
		}
	}
	n := len(w.mails())
	for body, want := range map[string]int{"[]": 422, "[" + hello: 400, "[" + hello + ",]": 400, "[" + hello + "] x": 400, "[" + hello + " " + hello + "]": 400, "[1]": 400, "[[" + hello + "]]": 400,
		"[" + strings.Repeat(hello+",", 50) + hello + "]": 413} {
		status, text, _ := w.post("/v1/messages", "application/json", body)
		if status != want || want != 422 && strings.HasPrefix(body, "["+hello) && !strings.Contains(text, `"results":[{"status":200`) {
			t.Errorf("%.60s: %d %.300s", body, status, text)
		}
	}
	if more := len(w.mails()) - n; more != 54 {
		t.Errorf("%d were queued, of batches that broke off", more)
	}
	if status, text, _ := w.post("/v1/messages", "application/json", "["+hello+"]", "Idempotency-Key", "k"); status != 422 {
		t.Errorf("%d %s", status, text)
	}
}

// What cleanup refuses the client is told, for good or for now.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tt := range []struct {
		reply proto.SubmitReply
		want  int
	}{
		{proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error"}, 503},
		{proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "Insufficient system storage"}, 503},
		{proto.SubmitReply{Code: 552, Status: dsn.S(5, 3, 4), Text: "Message size exceeds fixed limit"}, 413},
		{proto.SubmitReply{Code: 550, Status: dsn.S(5, 7, 1), Text: "no bad mail"}, 422},
	} {
		w.set(func() { w.verdict = func(*got) *proto.SubmitReply { return &tt.reply } })
		for _, key := range []string{"", "k"} {
			var h []string
			if key != "" {
				h = []string{"Idempotency-Key", key}
			}
			status, text, header := w.post("/v1/messages", "application/json", hello, h...)
			if status != tt.want || !strings.Contains(text, tt.reply.Text) || (tt.want == 503) != (header.Get("Retry-After") != "") {
				t.Errorf("%+v: %d %s", tt.reply, status, text)
			}
		}
	}
	// One of two is refused for now: the other is queued, and the answer says which.
	w.set(func() {
		w.verdict = func(g *got) *proto.SubmitReply {
			if g.Envelope.Recipients[0].Address == "a@to.test" {
				return &proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "no"}
			}
			return &proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)}
		}
	})
	status, r, text := w.send(`{"from": "ann@from.test", "to": ["a@to.test", "b@to.test"], "individual": true, "text": "x"}`)
	if status != 200 || len(r.Messages) != 1 || len(r.Refused) != 1 || r.Refused[0].Recipient != "a@to.test" || r.Refused[0].Status != 503 {
		t.Errorf("%d %s", status, text)
	}
}

// A token's quota counts recipients of mail that was queued, until midnight, also over a restart.
func TestQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.now = time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC) })
	w.token = w.newToken(apitoken.Token{Name: "small", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}, Quota: 3})
	two := `{"from": "ann@from.test", "to": ["a@to.test", "b@to.test"], "text": "x"}`
	w.set(func() {
		w.verdict = func(*got) *proto.SubmitReply { return &proto.SubmitReply{Code: 550, Status: dsn.S(5, 7, 1)} }
	})
	if status, _, text := w.send(two); status != 422 {
		t.Fatalf("%d %s", status, text)
	}
	w.set(func() { w.verdict = nil })
	if status, _, text := w.send(two, "Idempotency-Key", "k"); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	w.restart(false)
	if status, _, text := w.send(two, "Idempotency-Key", "k"); status != 200 {
		t.Errorf("a repeated request counts again: %d %s", status, text)
	}
	for _, tt := range []struct{ kind, body string }{{"application/json", two}, {"message/rfc822", "From: ann@from.test\n\n"}} {
		query := ""
		if tt.kind == "message/rfc822" {
			query = "?from=ann@from.test&to=a@to.test&to=b@to.test"
		}
		status, text, h := w.post("/v1/messages"+query, tt.kind, tt.body)
		if status != 429 || !strings.Contains(text, "1 are left") || h.Get("Retry-After") != "3598" {
			t.Errorf("%d %s %s", status, text, h.Get("Retry-After"))
		}
	}
	if status, _, text := w.send(hello); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if status, _, text := w.send(hello); status != 429 {
		t.Errorf("%d %s", status, text)
	}
	w.pass(time.Hour)
	if status, _, text := w.send(two); status != 200 {
		t.Errorf("the next day: %d %s", status, text)
	}
}

// Mail for later is in the queue, and is first tried when it is to be.
func TestSendAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := w.clock().Add(30 * time.Minute).Truncate(time.Second)
	status, _, text := w.send(`{"from": "ann@from.test", "to": ["a@to.test"], "text": "x", "send_at": "` + at.Format(time.RFC3339) + `"}`)
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if status, text, _ := w.post(fmt.Sprintf("/v1/messages?from=ann@from.test&to=a@to.test&send_at=%d", at.Unix()), "message/rfc822", "From: ann@from.test\n\nx", "Idempotency-Key", "k"); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	for _, g := range w.mails() {
		if s := g.State; s == nil || s.Set != queue.SetQueue|queue.SetNextAttempt || s.Queue != queue.Deferred || !s.NextAttempt.Equal(at) || !g.Envelope.SendAt.Equal(at) {
			t.Errorf("%+v %v", g.State, g.Envelope.SendAt)
		}
	}
	for when, want := range map[string]int{`"tomorrow"`: 422, `true`: 400, `"2020-01-01T00:00:00Z"`: 200, fmt.Sprint(at.Add(time.Hour).Unix()): 422} {
		if status, _, text := w.send(`{"from": "ann@from.test", "to": ["a@to.test"], "text": "x", "send_at": ` + when + `}`); status != want {
			t.Errorf("%s: %d %s", when, status, text)
		}
	}
	if len(w.released) != 0 {
		t.Errorf("%q were released before their time", w.released)
	}
}

// Internationalized addresses: a domain becomes ASCII, and what does not needs SMTPUTF8.
func TestUTF8(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	status, r, text := w.send(`{"from": "ann@from.test", "to": ["joe@bücher.test", "jörg@to.test"], "individual": true, "text": "x"}`)
	if status != 200 || len(r.Messages) != 2 {
		t.Fatalf("%d %s", status, text)
	}
	for _, g := range w.mails() {
		x, utf8 := g.Envelope.Recipients[0], g.Envelope.Body&mail.BodySMTPUTF8 != 0
		if !utf8 && (x.Address != "joe@xn--bcher-kva.test" || x.ORCPT != "rfc822;joe@xn--bcher-kva.test") || utf8 && (x.Address != "jörg@to.test" || x.ORCPT != "utf-8;jörg@to.test") {
			t.Errorf("%+v", x)
		}
	}
	w.server.utf8 = false
	status, r, text = w.send(`{"from": "ann@from.test", "to": ["joe@bücher.test", "jörg@to.test"], "text": "x"}`)
	if status != 200 || len(r.Refused) != 1 || r.Refused[0].Recipient != "jörg@to.test" {
		t.Errorf("%d %s", status, text)
	}
}
