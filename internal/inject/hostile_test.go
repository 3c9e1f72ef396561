package inject

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	netmail "net/mail"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/testwait"
)

// What a client says is refused by name where it cannot be done, and nothing is queued.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	to := `"from": "ann@from.test", "to": ["a@to.test"]`
	for _, tt := range []struct {
		body, want string
		status     int
	}{
		{``, "ends too soon", 400},
		{`{`, "ends too soon", 400},
		{`"x"`, "object was expected", 400},
		{`null`, "object was expected", 400},
		{hello + hello, "behind the JSON", 400},
		{hello + "x", "behind the JSON", 400},
		{`{"from": "ann@from.test"}`, "no recipient", 422},
		{`{"to": ["a@to.test"], "text": "x"}`, "from: there is no sender", 422},
		{`{` + to + `}`, "no content", 422},
		{`{` + to + `, "text": "x", "colour": 1}`, "colour: there is no such field", 400},
		{`{` + to + `, "text": "x", "text": "y"}`, "text: it is there twice", 400},
		{`{` + to + `, "text": "x", "te\u0078t": "y"}`, "text: it is there twice", 400},
		{`{` + to + `, "text": null}`, "text: it is null", 400},
		{`{` + to + `, "text": 1}`, "text: a text was expected", 400},
		{`{` + to + `, "text": "a\u0000b"}`, "text: a text has a NUL", 400},
		{`{` + to + `, "text": "a` + "\n" + `b"}`, "control character", 400},
		{`{` + to + `, "text": "\ud800"}`, "surrogate", 400},
		{`{` + to + `, "text": "\x"}`, "escape", 400},
		{`{` + to + `, "text": "` + "\xff" + `"}`, "not UTF-8", 400},
		{`{` + to + `, "text": "x", "subject": "a\r\nBcc: evil@to.test"}`, "subject: it has no control characters", 422},
		{`{` + to + `, "text": "x", "subject": "a\u0001"}`, "subject: it has no control characters", 422},
		{`{` + to + `, "text": "x", "headers": {"X-A": "a\nBcc: evil@to.test"}}`, "headers.\\\"X-A\\\": a header field has no control", 422},
		{`{` + to + `, "text": "x", "headers": {"X-A: b\r\nX": "a"}}`, "no name of a header field", 422},
		{`{` + to + `, "text": "x", "headers": {"": "a"}}`, "no name of a header field", 422},
		{`{` + to + `, "text": "x", "headers": {"Bcc": "a@to.test"}}`, "field of the request", 422},
		{`{` + to + `, "text": "x", "headers": {"content-type": "text/html"}}`, "mail system writes it", 422},
		{`{` + to + `, "text": "x", "headers": {"DKIM-Signature": "x"}}`, "mail system writes it", 422},
		{`{` + to + `, "text": "x", "headers": {"References": "<ä>"}}`, "not ASCII", 422},
		{`{` + to + `, "text": "x", "headers": {"X": "` + strings.Repeat("y", 1200) + `"}}`, "longer than a line", 422},
		{`{` + to + `, "text": "x", "variables": {"a b": "x"}}`, "no name of a variable", 422},
		{`{` + to + `, "text": "x", "variables": {"a": []}}`, "lists cannot be put into a text", 422},
		{`{` + to + `, "text": "{{a b}}", "variables": {"a": "x"}}`, "only variables", 422},
		{`{` + to + `, "text": "{{a", "variables": {"a": "x"}}`, "only variables", 422},
		{`{` + to + `, "raw": "From: ann@from.test\n\nx", "text": "x"}`, "text: raw stands in its place", 422},
		{`{` + to + `, "text": "x", "individual": true, "cc": ["b@to.test"]}`, "no cc", 422},
		{`{` + to + `, "attachments": [{"content": "QQ="}]}`, "not base64", 422},
		{`{` + to + `, "attachments": [{"content": "Q"}]}`, "not base64", 422},
		{`{` + to + `, "attachments": [{"content": "QQ==QQ=="}]}`, "not base64", 422},
		{`{` + to + `, "attachments": [{"content": "Q Q="}]}`, "not base64", 422},
		{`{` + to + `, "attachments": [{"filename": "a"}]}`, "attachments[0].content: it is missing", 422},
		{`{` + to + `, "attachments": [{"content": "", "filename": "../a"}]}`, "slash", 422},
		{`{` + to + `, "attachments": [{"content": "", "filename": "a\r\nX: y"}]}`, "control character", 422},
		{`{` + to + `, "attachments": [{"content": "", "content_type": "text/plain\r\nX: y"}]}`, "no media type", 422},
		{`{` + to + `, "attachments": [{"content": "", "content_type": "multipart/mixed"}]}`, "not composed here", 422},
		{`{` + to + `, "attachments": [{"content": "", "content_id": "a>\r\nX: y"}]}`, "no identifier", 422},
		{`{` + to + `, "inline": [{"content": ""}]}`, "content_id: it is missing", 422},
		{`{` + to + `, "attachments": [` + strings.Repeat(`{"content": ""},`, 10) + `{"content": ""}]}`, "more than 10 attachments", 413},
		{`{` + to + `, "text": "x", "list_unsubscribe": {}}`, "neither url nor mailto", 422},
		{`{` + to + `, "text": "x", "list_unsubscribe": {"url": "ftp://x"}}`, "no URL", 422},
		{`{` + to + `, "text": "x", "list_unsubscribe": {"url": "http://x.test/", "one_click": true}}`, "needs https", 422},
		{`{` + to + `, "text": "x", "list_unsubscribe": {"url": "https://x.test/>\r\nX: y"}}`, "no URL", 422},
		{`{` + to + `, "text": "x", "list_unsubscribe": {"mailto": "a@b.test>, <x"}}`, "no mail address", 422},
		{`{` + to + `, "text": "x", "list_unsubscribe": {"mailto": "a@b.test", "one_click": true}}`, "one-click needs one", 422},
		{`{` + to + `, "text": "x", "idempotency_key": "a\nb"}`, "an idempotency key has", 422},
		{`{` + to + `, "text": "x", "reply_to": "a@b.test\r\nX: y"}`, "no mail address", 422},
		{`{"from": "Ann\r\nX: y <ann@from.test>", "to": ["a@to.test"], "text": "x"}`, "control characters", 422},
		{`{"from": {"email": "ann@from.test", "name": "a\nb"}, "to": ["a@to.test"], "text": "x"}`, "from.name: a name has no control", 422},
		{`{"from": {"name": "a"}, "to": ["a@to.test"], "text": "x"}`, "from.email: it is missing", 422},
		{`{` + to + `, "text": "x", "variables": ` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat("}", 100) + `}`, "nested more than 16 deep", 400},
		{`{"from": "ann@from.test", "to": [` + strings.Repeat(`"a@to.test",`, 100) + `"b@to.test"], "text": "x"}`, "more than 100 recipients", 413},
		{`{` + to + `, "text": "` + strings.Repeat("x", 2<<20) + `"}`, "larger than", 413},
	} {
		status, _, text := w.send(tt.body)
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%.150s: %d %.300s\nwant %d %s", tt.body, status, text, tt.status, tt.want)
		}
	}
	if n := len(w.mails()); n != 0 {
		t.Errorf("%d messages were queued", n)
	}
}

// A recipient's address that is none, or more than one, is refused for itself.
func TestBadRecipients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := []string{"", "a", "@to.test", "a@", "a@to.test\r\nRCPT TO:<b@to.test>", "a@to.test> NOTIFY=NEVER", "a@to.test>,<b@to.test", "a b@to.test", "a@to.test b@to.test", "a@to..test", "a@.to.test", "a@to.test.", "\u0000@to.test",
		"a@to.test, b@to.test", "<a@to.test", "a@[1.2.3", "a@@to.test", "a@" + strings.Repeat("x", 400), "ä\u0085@to.test", "<@x,@y:a@to.test>"}
	text, err := json.Marshal(map[string]any{"from": "ann@from.test", "to": append([]string{"good@to.test", "\"a b\"@to.test", "Joe (x) <joe@to.test>", "\"Q, <x>\" <q@to.test>"}, bad...), "text": "x"})
	if err != nil {
		t.Fatal(err)
	}
	status, r, answer := w.send(strings.ReplaceAll(string(text), `\u0000`, `\u0001`))
	if status != 200 || len(r.Messages) != 1 || len(r.Messages[0].Recipients) != 4 || len(r.Refused) != len(bad) {
		t.Fatalf("%d %s", status, answer)
	}
	var got []string
	for _, x := range w.mails()[0].Envelope.Recipients {
		got = append(got, x.Address)
	}
	if !reflect.DeepEqual(got, []string{"good@to.test", "a b@to.test", "joe@to.test", "q@to.test"}) {
		t.Errorf("%q", got)
	}
}

// Whatever stands in names, texts and values, the header has the fields that it is to have, each once.
func TestHeaderFields(t *testing.T) {
	t.Parallel()
	evil := "x\u2028\u0085y =?utf-8?b?QQ==?= \"<>,;:\\ \x7f"
	w := newWorld(t)
	for _, s := range []string{evil, strings.ReplaceAll(evil, "\x7f", ""), strings.Repeat("ü", 70), strings.Repeat("a ", 60)} {
		body, err := json.Marshal(map[string]any{"from": map[string]string{"email": "ann@from.test", "name": s}, "to": []any{map[string]any{"email": "a@to.test", "name": s, "variables": map[string]string{"v": s}}},
			"subject": "{{v}}", "text": "{{v}}\r\n\r\nFrom: x", "headers": map[string]string{"X-V": "{{v}} z"}})
		if err != nil {
			t.Fatal(err)
		}
		status, _, text := w.send(string(body))
		if strings.Contains(s, "\x7f") {
			if status != 422 {
				t.Errorf("%d %s", status, text)
			}
			continue
		}
		if status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		all := w.mails()
		g := all[len(all)-1]
		m, err := netmail.ReadMessage(strings.NewReader(g.text))
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range map[string]int{"From": 1, "To": 1, "Subject": 1, "X-V": 1, "Received": 1, "Bcc": 0, "Mime-Version": 1, "Content-Type": 1} {
			if len(m.Header[name]) != n {
				t.Errorf("%s: %q\n%s", name, m.Header[name], g.text)
			}
		}
		if len(m.Header) != 8 { // with Content-Transfer-Encoding
			t.Errorf("%v", m.Header)
		}
		if from, err := m.Header.AddressList("From"); err != nil || len(from) != 1 || from[0].Address != "ann@from.test" {
			t.Errorf("%v %v\n%s", from, err, g.text)
		}
	}
}

// A variable's value is no line of its own wherever it stands in the header.
func TestHeaderVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, where := range []string{`"subject": "{{v}}"`, `"headers": {"X-A": "{{v}}"}`, `"headers": {"Message-ID": "<{{v}}@x>"}`, `"list_unsubscribe": {"url": "https://x.test/{{v}}"}`} {
		for _, v := range []string{`x\r\nBcc: y`, `x\ny`, `x\ry`, `x\u0000y`, `x\u007f`} {
			status, _, text := w.send(`{"from": "ann@from.test", "to": [{"email": "a@to.test", "variables": {"v": "` + v + `"}}], "text": "x", ` + where + `}`)
			if status/100 != 4 {
				t.Errorf("%s %s: %d %s", where, v, status, text)
			}
		}
	}
	if len(w.mails()) != 0 {
		t.Error("something was queued")
	}
}

// Bodies that are compressed are refused, however little they are, before they are read.
func TestCompressed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.CopyN(z, zeros{}, 64<<20)
	z.Close()
	if status, text, _ := w.post("/v1/messages", "application/json", b.String(), "Content-Encoding", "gzip"); status != 415 {
		t.Errorf("%d %s", status, text)
	}
	for kind, want := range map[string]int{"": 415, "text/plain": 415, "application/json; charset=latin1": 415, "application/json; charset=UTF-8": 200} {
		if status, text, _ := w.post("/v1/messages", kind, hello); status != want {
			t.Errorf("%s: %d %s", kind, status, text)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// raw sends octets to the service, and returns what it says.
func (w *world) raw(text string) string {
	w.t.Helper()
	c, err := net.Dial("tcp", w.web.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	go io.WriteString(c, text)
	_ = c.SetReadDeadline(time.Now().Add(testwait.Patience))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode) + " " + string(b)
}

// Requests that no client of good will makes.
func TestWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	head := "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + w.token + "\r\n"
	for name, tt := range map[string]struct{ text, want string }{
		"a body that breaks off":      {head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"fro\r\nxx\r\n", "400 "},
		"chunks without an end":       {head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n" + strings.Repeat("fffff\r\n"+strings.Repeat(" ", 0xfffff)+"\r\n", 4), "413 "},
		"a header without an end":     {head + strings.Repeat("X-A: "+strings.Repeat("y", 1000)+"\r\n", 200), "431 "},
		"two lengths":                 {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "400 "},
		"a length and chunks":         {head + "Content-Type: application/json\r\nContent-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\n{}", "501 "},
		"two keys":                    {head + "Content-Type: application/json\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 2\r\n\r\n{}", "400 "},
		"two senders":                 {head + "Content-Type: message/rfc822\r\nX-Envelope-From: a@from.test\r\nX-Envelope-From: b@from.test\r\nContent-Length: 0\r\n\r\n", "400 "},
		"a header of a message alone": {strings.Replace(head, "/v1/messages", "/v1/messages?from=ann@from.test&to=a@to.test", 1) + "Content-Type: message/rfc822\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\nX: "+strings.Repeat("z", 0x3fb)+"\r\n\r\n", 300), "413 "},
	} {
		if got := w.raw(tt.text); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %.200s", name, got)
		}
	}
	if n := len(w.mails()); n != 0 {
		t.Errorf("%d messages were queued", n)
	}
}

// What a request costs grows with its length, and not with the square of it. A quadratic step would take hours here.
func TestLinear(t *testing.T) {
	t.Parallel()
	const n = 4 << 20
	set := &limits{recipients: 10, attachments: 10, schedule: time.Hour}
	token := &apitoken.Token{Name: "t", Senders: []string{"*"}}
	to := `{"from": "a@from.test", "to": [{"email": "a@to.test", "variables": {"v": "x"}}], `
	for name, body := range map[string]string{
		"escapes":   to + `"text": "` + strings.Repeat(`\n`, n/2) + `"}`,
		"quotes":    to + `"text": "` + strings.Repeat(`\"`, n/2) + `"}`,
		"slashes":   to + `"text": "` + strings.Repeat(`\\`, n/2) + `"}`,
		"braces":    to + `"text": "` + strings.Repeat(`{ `, n/2) + `"}`,
		"variables": to + `"text": "` + strings.Repeat(`{{v}}`, n/5) + `"}`,
		"returns":   to + `"text": "` + strings.Repeat(`\r`, n/2) + `"}`,
		"words":     to + `"text": "x", "headers": {"X": "` + strings.Repeat(`a `, maxFieldValue/2) + `"}}`,
		"lines":     to + `"attachments": [{"content": "` + strings.Repeat(`AAAA\n`, n/6) + `"}]}`,
		"spaces":    strings.Repeat(" ", n) + to + `"text": "x"}`,
	} {
		m, err := decode([]byte(body), set)
		if err == nil {
			var o *order
			if o, err = plan(m, token, true); err == nil && len(o.drafts) > 0 {
				err = o.write(io.Discard, o.drafts[0])
			}
		}
		if f := new(fault); err != nil && (!errors.As(err, &f) || f.status != 413) {
			t.Errorf("%s: %v", name, err)
		}
		s := &items{r: iotest.HalfReader(strings.NewReader(body)), limit: 2 * n}
		if _, err := s.next(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	kumo := `{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test", "substitutions": {"v": "x"}}], "content": "From: a@from.test\nX: ` + strings.Repeat(`{{ v }} \n `, maxPieces/4) + `\n\nx"}`
	m, err := decodeKumo([]byte(kumo), set)
	if err == nil {
		_, err = plan(m, token, true)
	}
	if err != nil {
		t.Error(err)
	}
}

// A client that sends a body slowly is given up, and one that sends steadily is not.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			pause time.Duration
			piece int
			want  bool
		}{{time.Second, minRate, true}, {time.Second, minRate / 2, false}, {time.Hour, 1 << 20, false}, {10 * time.Second, 1, false}} {
			b := &body{r: &slow{tt.pause, tt.piece, 1000}, control: http.NewResponseController(nowhere{}), now: time.Now}
			_, err := io.Copy(io.Discard, b)
			if (err == nil) != tt.want || err != nil && err != error(errSlow) {
				t.Errorf("%+v: %v", tt, err)
			}
		}
	})
}

type slow struct {
	pause time.Duration
	piece int
	left  int
}

func (s *slow) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	s.left--
	time.Sleep(s.pause)
	return min(s.piece, len(p)), nil
}

type nowhere struct{ http.ResponseWriter }

func (nowhere) SetReadDeadline(time.Time) error { return nil }

// A value is found wherever reads end, and however long its texts are.
func TestItems(t *testing.T) {
	t.Parallel()
	values := []string{`{}`, `{"a":"}{][\\\"\\"}`, `{"a":[{"b":["]"]}]}`, `{"a":"` + strings.Repeat(`\\`, 5000) + `"}`, `{"a":"` + strings.Repeat("x", 40000) + `\""}`}
	for _, list := range []bool{false, true} {
		text := strings.Join(values, " \n")
		if list {
			text = " [ " + strings.Join(values, ", ") + " ] "
		}
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(text), "octets": iotest.OneByteReader(strings.NewReader(text)), "halves": iotest.HalfReader(strings.NewReader(text)), "with the end": iotest.DataErrReader(strings.NewReader(text))} {
			s := &items{r: r, limit: 50000}
			if is, err := s.isList(); is != list || err != nil {
				t.Fatal(is, err)
			}
			for i, want := range values {
				if got, err := s.next(); err != nil || string(got) != want {
					t.Fatalf("%s %d: %.60q %v", name, i, got, err)
				}
			}
			if got, err := s.next(); err != io.EOF {
				t.Errorf("%s: %q %v", name, got, err)
			}
		}
	}
}

// Large requests wait for memory, and are refused when there is none.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		one := &share{b: b}
		if err := one.take(t.Context(), 80); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- (&share{b: b}).take(t.Context(), 30) }()
		synctest.Wait()
		one.end()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := (&share{b: b}).take(t.Context(), 1000); asFault(err).status != 503 {
			t.Error(err)
		}
		b.give(30)
		if err := (&share{b: b}).take(t.Context(), 1000); err != nil { // more than there is, when nobody else has any
			t.Error(err)
		}
	})
}

// KumoMTA's request.
func TestKumo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	status, text, _ := w.post("/api/inject/v1", "application/json", `{"envelope_sender": "bounce@from.test", "content": "From: Ann <ann@from.test>\nSubject: A test\nTo: \"{{ name }}\" <{{ email }}>\n\nHello {{ name }}, {{ n }}\n",
		"recipients": [{"email": "a@to.test", "name": "James Smythe", "metadata": {"tenant": "x"}}, {"email": "no", "name": "x"}, {"email": "c@to.test"}], "substitutions": {"n": 1}, "deferred_spool": true, "deferred_generation": true,
		"trace_headers": {"received_header": true, "include_meta_names": ["tenant"]}}`)
	var r KumoResult
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || r.SuccessCount != 1 || r.FailCount != 2 || len(r.Errors) != 2 {
		t.Fatalf("%d %s", status, text)
	}
	g := w.mails()[0]
	for _, want := range []string{"Received: from localhost", "X-KumoRef: eyJfQF8iOiJcXF8vIiwicmVjaXBpZW50IjoiYUB0by50ZXN0IiwidGVuYW50\r\n IjoieCJ9\r\n", "To: \"James Smythe\" <a@to.test>\r\n", "Hello James Smythe, 1\r\n"} {
		if !strings.Contains(g.text, want) || g.Envelope.Sender != "bounce@from.test" {
			t.Errorf("%q is not in\n%s", want, g.text)
		}
	}
	status, text, _ = w.post("/api/inject/v1", "application/json", `{"envelope_sender": "bounce@from.test", "recipients": [{"email": "a@to.test", "substitutions": {"x": "<b>"}}], "template_dialect": "Handlebars", "trace_headers": {"supplemental_header": false},
		"content": {"text_body": "t {{x}}", "html_body": "h {{x}} {{{x}}}", "amp_html_body": "amp {{x}}", "from": {"email": "ann@from.test", "name": "Ann"}, "subject": "s {{x}}", "reply_to": {"email": "r@from.test"},
		"headers": {"X-Y": "{{x}}"}, "attachments": [{"data": "hello", "content_type": "text/plain", "file_name": "h.txt"}, {"data": "AAEC", "base64": true, "content_type": "image/png", "content_id": "i"}]}}`)
	if status != 200 || !strings.Contains(text, `"success_count":1`) {
		t.Fatalf("%d %s", status, text)
	}
	g = w.mails()[1]
	for _, want := range []string{"t <b>\r\n", "h &lt;b&gt; <b>\r\n", "amp &lt;b&gt;\r\n", "From: Ann <ann@from.test>\r\n", "Subject: s <b>\r\n", "To: a@to.test\r\n", "Reply-To: r@from.test\r\n", "X-Y: <b>\r\n", "aGVsbG8=\r\n", "Content-ID: <i>\r\n"} {
		if !strings.Contains(g.text, want) {
			t.Errorf("%q is not in\n%s", want, g.text)
		}
	}
	if strings.Contains(g.text, "X-KumoRef") || strings.Contains(g.text, "Received: ") {
		t.Error(g.text)
	}
	if status, text, _ := w.post("/api/inject/v1", "application/json", `{"envelope_sender": "bounce@from.test", "recipients": [{"email": "a@to.test", "substitutions": {"x": "{{ y }}"}}], "template_dialect": "Static", "content": "From: ann@from.test\n\n{{ x }}"}`); status != 200 || !strings.HasSuffix(w.mails()[2].text, "\r\n\r\n{{ x }}\r\n") {
		t.Errorf("%d %s", status, text)
	}
}

// What KumoMTA would do and this service does not is refused by name.
func TestKumoRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for more, want := range map[string]string{
		`"content": "x", "x": 1`:                                 "x: there is no such field",
		`"envelope_sender": "a@from.test"`:                       "envelope_sender: it is there twice",
		`"x": 1, "content": "x"`:                                 "x: there is no such field",
		`"content": {}`:                                          "neither text_body nor html_body",
		`"content": {"text_body": "{% if x %}"}`:                 "only variables",
		`"content": {"text_body": "{{ x | upper }}"}`:            "only variables",
		`"content": {"text_body": "x", "headers": {"To": "x"}}`:  "field of the request",
		`"content": {"text_body": "x", "attachments": [{}]}`:     "data: it is missing",
		`"content": "x", "template_dialect": "Mustache"`:         "the dialects are",
		`"content": "x", "trace_headers": {"header_name": "To"}`: "cannot be the name",
		`"content": "x", "trace_headers": {"x": true}`:           "trace_headers.x: there is no such field",
	} {
		status, text, _ := w.post("/api/inject/v1", "application/json", `{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test"}], `+more+`}`)
		if status/100 != 4 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", more, status, text)
		}
	}
	status, text, _ := w.post("/api/inject/v1", "application/json", `{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test", "metadata": {"campaign": "x"}}], "content": "From: a@from.test\n\nx"}`)
	if status != 422 || !strings.Contains(text, "recipients[0].metadata.campaign: nothing here reads it") {
		t.Errorf("%d %s", status, text)
	}
	status, text, _ = w.post("/api/inject/v1", "application/json", `{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test", "name": "x\r\nBcc: y"}, {"email": "b@to.test", "substitutions": {"v": "x\nBcc: y"}}], "content": "From: a@from.test\nTo: {{ v }}\n\nx"}`)
	if status != 200 || !strings.Contains(text, `"fail_count":2`) || len(w.mails()) != 0 {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := w.post("/api/inject/v1", "application/json", `{"recipients": [], "content": "x"}`); status != 422 {
		t.Errorf("%d %s", status, text)
	}
}

// The description is JSON, and names every field that requests may have: those of the types, which the
// functions that read requests know, each and no others.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	var doc struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(openAPI(operations(), "1"), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Paths) != 3 || doc.Components.Schemas["MessageRequest"].Properties["to"] == nil || doc.Components.Schemas["KumoContent"].Properties["html_body"] == nil {
		t.Errorf("%v", doc)
	}
	set := &limits{recipients: 10, attachments: 10, schedule: time.Hour}
	knows := func(body string, decode func([]byte, *limits) (*message, error)) bool {
		_, err := decode([]byte(body), set)
		return err == nil || !strings.Contains(err.Error(), "no such field")
	}
	for name := range doc.Components.Schemas["MessageRequest"].Properties {
		if !knows(fmt.Sprintf(`{%q: 1}`, name), decode) {
			t.Errorf("%s is not read", name)
		}
	}
	for _, tt := range []struct{ schema, before, after string }{{"KumoRequest", "", ""}, {"KumoContent", `"content": {`, `}`}, {"KumoAttachment", `"content": {"attachments": [{`, `}]}`},
		{"KumoRecipient", `"recipients": [{`, `}]`}, {"KumoTrace", `"trace_headers": {`, `}`}} {
		for name := range doc.Components.Schemas[tt.schema].Properties {
			if !knows(fmt.Sprintf(`{%s%q: 1%s}`, tt.before, name, tt.after), decodeKumo) {
				t.Errorf("%s.%s is not read", tt.schema, name)
			}
		}
	}
	if knows(`{"x": 1}`, decode) || knows(`{"x": 1}`, decodeKumo) {
		t.Error("all is read")
	}
}

// Whatever a client sends, a message that is taken has a header in which nothing is that the client could
// not have asked for, and lines that end in CRLF.
func FuzzMessage(f *testing.F) {
	f.Add(hello)
	f.Add(`{"from": "ann@from.test", "to": [{"email": "a@to.test", "name": "x", "variables": {"v": "y"}}], "subject": "{{v}}", "html": "{{{v}}}", "attachments": [{"content": "QUJD", "filename": "f"}], "headers": {"X": "{{v}}"}, "list_unsubscribe": {"url": "https://x.test/{{v}}"}}`)
	f.Add(`{"from": "ann@from.test", "to": ["a@to.test"], "raw": "From: ann@from.test\n\nx"}`)
	f.Fuzz(func(t *testing.T, body string) { fuzzOne(t, body, decode) })
}

// FuzzKumo is the same for KumoMTA's requests.
func FuzzKumo(f *testing.F) {
	f.Add(`{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test", "substitutions": {"v": "x"}}], "content": "From: a@from.test\nX: {{ v }}\n\nx {{ v }}"}`)
	f.Add(`{"envelope_sender": "a@from.test", "recipients": [{"email": "a@to.test", "name": "n"}], "content": {"text_body": "{{ name }}", "html_body": "{{ email }}", "headers": {"X": "{{ name }}"}, "attachments": [{"data": "x", "content_type": "a/b"}]}, "trace_headers": {"include_meta_names": ["m"]}}`)
	f.Fuzz(func(t *testing.T, body string) { fuzzOne(t, body, decodeKumo) })
}

func fuzzOne(t *testing.T, body string, decode func([]byte, *limits) (*message, error)) {
	set := &limits{recipients: 10, attachments: 10, schedule: time.Hour}
	m, err := decode([]byte(body), set)
	if err == nil && !json.Valid([]byte(body)) {
		t.Fatal("it is not JSON")
	}
	if err == nil {
		err = m.check(time.Unix(0, 0), set)
	}
	if err != nil {
		return
	}
	o, err := plan(m, &apitoken.Token{Name: "t", Senders: []string{"*"}}, true)
	if err != nil {
		return
	}
	for _, d := range o.drafts {
		var b sliceWriter
		if err := o.write(&b, d); err != nil {
			t.Fatal(err)
		}
		if m.raw == nil && bytes.Count(b, []byte("\r\n")) != bytes.Count(b, []byte("\n")) {
			t.Fatalf("%q", b)
		}
		h, err := netmail.ReadMessage(bytes.NewReader(b))
		if err != nil {
			if m.raw == nil {
				t.Fatalf("%v\n%q", err, b)
			}
			continue
		}
		if m.raw == nil && (len(h.Header["Mime-Version"]) != 1 || len(h.Header["Bcc"]) != 0 || len(h.Header["From"]) > 1 || len(h.Header["Content-Type"]) != 1) {
			t.Fatalf("%q", b)
		}
	}
}
