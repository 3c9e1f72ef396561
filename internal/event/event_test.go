package event

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

var rewrite = flag.Bool("rewrite", false, "write the golden lines anew")

var noon = time.Date(2026, 11, 28, 12, 0, 0, 123456000, time.UTC)

// samples is one event of each kind, as services make them.
func samples() []Event {
	ms := time.Millisecond
	delivery := func(status, text string, code dsn.Status, more func(*maillog.Delivery)) Event {
		l := &maillog.Delivery{ID: "4jWn4F1YhnzSshsm4", To: "joe@example.net", Relay: "mx.example.net[192.0.2.25]:25", Delay: 1530 * ms,
			Delays: [4]time.Duration{20 * ms, 10 * ms, 1200 * ms, 300 * ms}, DSN: code, Status: status, Text: text, From: "ann@example.org",
			MessageID: "<1@example.org>", Nexthop: "example.net", Size: 2048, Attempt: 1, Session: "TLS 1.3 TLS_AES_256_GCM_SHA384"}
		if more != nil {
			more(l)
		}
		e, ok := Of(noon, l)
		if !ok {
			panic(status)
		}
		e.Transport = "smtp"
		return e
	}
	of := func(l maillog.Event) Event {
		e, ok := Of(noon, l)
		if !ok {
			panic(fmt.Sprintf("%T", l))
		}
		return e
	}
	reject := maillog.Reject{Action: "reject", Stage: "RCPT", Name: "unknown", Addr: "198.51.100.7", Text: "550 5.1.1 <nobody@example.org>: Recipient address rejected: User unknown",
		From: "spam@example.com", To: "nobody@example.org", HasFrom: true, HasTo: true, Proto: "ESMTP", Helo: "client.example.com"}
	discard := reject
	discard.Action, discard.Text = "discard", "<nobody@example.org>: Recipient address triggers DISCARD action"
	return []Event{
		{Kind: Received, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", MessageID: "<1@example.org>", EnvID: "order-17", Sender: "ann@example.org", FromMessage: true, Size: 2048,
			Recipients: []string{"joe@example.net", "\"two words\"@example.net"}, Count: 2, ClientName: "laptop.example.org", ClientAddr: "192.0.2.7", Helo: "laptop", Protocol: "ESMTPSA", SASLUser: "ann",
			Tenant: "acme", Campaign: "spring"},
		of(&reject),
		of(discard),
		delivery("sent", "250 2.0.0 Ok: queued as 123", dsn.S(2, 0, 0), func(l *maillog.Delivery) {
			l.Tenant, l.Campaign, l.Source, l.Provider = "acme", "spring", "mta1", "bigmail"
		}),
		delivery("deferred", "host mx.example.net[192.0.2.25] said: 452 4.2.2 <joe@example.net> over quota (in reply to RCPT TO command)", dsn.S(4, 2, 2), func(l *maillog.Delivery) { l.Class, l.OrigTo = "QuotaIssues", "joe@old.example.org" }),
		delivery("bounced", "host mx.example.net[192.0.2.25] said: 550 5.1.1 unknown user", dsn.S(5, 1, 1), func(l *maillog.Delivery) { l.Class, l.Attempt, l.Session = "InvalidRecipient", 3, "" }),
		{Kind: Expired, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", MessageID: "<1@example.org>", Sender: "ann@example.org", FromMessage: true, Recipient: "joe@example.net",
			Size: 2048, DSN: "4.4.1", Reply: "connect to mx.example.net[192.0.2.25]:25: Connection timed out", Attempt: 31},
		of(maillog.BounceNotice{ID: "4jWn4F1YhnzSshsm4", Kind: maillog.SenderBounce, NewID: "4jWn4F2YhnzSshsm5"}),
		{Kind: Held, Time: noon, QueueID: "4jWn4F1YhnzSshsm4"},
		{Kind: Released, Time: noon, QueueID: "4jWn4F1YhnzSshsm4"},
		{Kind: Requeued, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", NewID: "4jWn4F3YhnzSshsm6"},
		{Kind: Deleted, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", Sender: "", FromMessage: true},
		of(maillog.Suspended{Target: "destination:example.net", Subject: "delivery to example.net", By: "root", Reason: "maintenance there", Until: noon.Add(time.Hour)}),
		of(maillog.Resumed{Target: "destination:example.net", Subject: "delivery to example.net"}),
		{Kind: BouncedLater, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", MessageID: "<1@example.org>", Sender: "news@example.org", FromMessage: true, Recipient: "joe@example.net",
			DSN: "5.1.1", Reply: "550 5.1.1 unknown user", BounceClass: "InvalidRecipient", Source: "mta1", Provider: "bigmail", Tenant: "acme", Campaign: "spring", List: "news"},
		{Kind: Complaint, Time: noon, MessageID: "<1@example.org>", Feedback: "abuse", Unverified: true},
		{Kind: Unsubscribed, Time: noon, QueueID: "4jWn4F1YhnzSshsm4", Recipient: "joe@example.net", Tenant: "shop", Campaign: "spring", List: "letter"},
	}
}

// Each kind has a golden line: the schema does not change by mistake.
func TestGolden(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	var kinds []Kind
	for _, e := range samples() {
		kinds = append(kinds, e.Kind)
		got.Write(e.JSON("mail.example.org"))
		got.WriteByte('\n')
	}
	if !reflect.DeepEqual(kinds, Kinds()) {
		t.Errorf("there are samples of %v", kinds)
	}
	const name = "testdata/events.json"
	if *rewrite {
		if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the events differ from %s (go test ./internal/event -rewrite); they are\n%s", name, got.Bytes())
	}
	for line := range bytes.Lines(want) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil || m["schema"] != float64(Schema) || len(fmt.Sprint(m["id"])) != 32 {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// docs/events.md shows the golden lines, and describes each field and kind.
func TestDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	golden, err := os.ReadFile("testdata/events.json")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(doc, string(golden)) {
		t.Error("the document does not show the lines of testdata/events.json")
	}
	for _, k := range Kinds() {
		if !strings.Contains(doc, "\n| `"+string(k)+"` |") {
			t.Errorf("there is no row for the kind %s", k)
		}
	}
	for _, f := range fields {
		if !strings.Contains(doc, "`"+f.name+"`") {
			t.Errorf("the field %s is not described", f.name)
		}
	}
}

// No sender can have so many addresses, and of such characters, that there is no event.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	e := Event{Kind: Received, QueueID: "q", Sender: strings.Repeat("\x01", 2000), FromMessage: true, Count: 200}
	for range e.Count {
		e.Recipients = append(e.Recipients, strings.Repeat("\x01", 300)+"@example.org")
	}
	var got struct {
		Recipients []string `json:"recipients"`
		Count      int      `json:"recipient_count"`
	}
	line := e.JSON("host")
	if err := json.Unmarshal(line, &got); err != nil || len(line) > proto.MaxEvent || got.Count != 200 || len(got.Recipients) < 25 {
		t.Errorf("%d octets, %d recipients of %d, %v", len(line), len(got.Recipients), got.Count, err)
	}
}

// The identifier is that of what happened: it stays when the same is told again, and differs otherwise.
func TestIdentifier(t *testing.T) {
	t.Parallel()
	id := func(e Event) string {
		var m struct{ ID string }
		if err := json.Unmarshal(e.JSON("mail.example.org"), &m); err != nil {
			t.Fatal(err)
		}
		return m.ID
	}
	seen := make(map[string]Kind)
	for _, e := range samples() {
		if other, ok := seen[id(e)]; ok {
			t.Errorf("%s has the identifier of %s", e.Kind, other)
		}
		seen[id(e)] = e.Kind
		later := e
		later.Time = later.Time.Add(time.Second)
		if same := id(later) == id(e); same != (e.Kind.once() || e.Kind.reported() && e.QueueID != "") {
			t.Errorf("%s a second later: the same identifier is %v", e.Kind, same)
		}
		if e.Recipient != "" {
			other := e
			other.Recipient = "else@example.net"
			if id(other) == id(e) {
				t.Errorf("%s: another recipient has the same identifier", e.Kind)
			}
		}
	}
}

// Texts and times have the form that package json gives them, so that an event which is told again after an upgrade has the
// identifier that it had.
func FuzzQuoted(f *testing.F) {
	f.Add("plain", int64(1530e6))
	f.Add("\x00\x08\x0c\x1f\x7f\"\\/<>&\u2028\u2029\ufffd\xff\xe2\x80", int64(-1))
	f.Add("two\r\nlines\té\U0001f600", int64(1))
	f.Fuzz(func(t *testing.T, text string, n int64) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(text); err != nil {
			t.Fatal(err)
		}
		if got := string(quoted(nil, text)) + "\n"; got != b.String() {
			t.Errorf("%q is %s, not %s", text, got, b.String())
		}
		d := time.Duration(n)
		want, err := json.Marshal(float64(d.Microseconds()) / 1e6)
		if got := seconds(nil, d); err != nil || string(got) != string(want) {
			t.Errorf("%v is %s, not %s", d, got, want)
		}
	})
}

// A document is the JSON form as package json makes it.
type document struct {
	Kind       Kind      `json:"kind"`
	Time       string    `json:"time"`
	Host       string    `json:"host,omitempty"`
	QueueID    string    `json:"queue_id,omitempty"`
	MessageID  string    `json:"message_id,omitempty"`
	EnvID      string    `json:"envid,omitempty"`
	Sender     *string   `json:"sender,omitempty"`
	Recipient  string    `json:"recipient,omitempty"`
	Original   string    `json:"original_recipient,omitempty"`
	Recipients []string  `json:"recipients,omitempty"`
	Count      int       `json:"recipient_count,omitempty"`
	Size       int64     `json:"size,omitempty"`
	Transport  string    `json:"transport,omitempty"`
	NextHop    string    `json:"next_hop,omitempty"`
	Relay      string    `json:"relay,omitempty"`
	RelayAddr  string    `json:"relay_address,omitempty"`
	RelayPort  string    `json:"relay_port,omitempty"`
	DSN        string    `json:"dsn,omitempty"`
	Reply      string    `json:"reply,omitempty"`
	Class      string    `json:"bounce_class,omitempty"`
	Attempt    int       `json:"attempt,omitempty"`
	Delay      *float64  `json:"delay,omitempty"`
	Delays     []float64 `json:"delays,omitempty"`
	TLS        string    `json:"tls,omitempty"`
	Source     string    `json:"source,omitempty"`
	Provider   string    `json:"provider,omitempty"`
	ClientName string    `json:"client_name,omitempty"`
	ClientAddr string    `json:"client_address,omitempty"`
	Helo       string    `json:"helo,omitempty"`
	Protocol   string    `json:"protocol,omitempty"`
	SASLUser   string    `json:"sasl_username,omitempty"`
	Stage      string    `json:"stage,omitempty"`
	Notice     string    `json:"notice,omitempty"`
	NewID      string    `json:"new_queue_id,omitempty"`
	Target     string    `json:"target,omitempty"`
	By         string    `json:"by,omitempty"`
	Until      string    `json:"until,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Campaign   string    `json:"campaign,omitempty"`
	List       string    `json:"list,omitempty"`
	Feedback   string    `json:"feedback_type,omitempty"`
	Unverified bool      `json:"unverified,omitempty"`
}

// documented is an event as a document.
func documented(e *Event, host string) *document {
	d := &document{Kind: e.Kind, Time: e.Time.UTC().Format(microTime), Host: host, QueueID: e.QueueID, MessageID: e.MessageID, EnvID: e.EnvID,
		Recipient: e.Recipient, Original: e.Original, Count: e.Count, Size: e.Size, Transport: e.Transport, NextHop: e.NextHop,
		Relay: e.Relay, RelayAddr: e.RelayAddr, RelayPort: e.RelayPort, DSN: e.DSN, Reply: e.Reply, Class: e.BounceClass, Attempt: e.Attempt,
		TLS: e.TLS, Source: e.Source, Provider: e.Provider, ClientName: e.ClientName, ClientAddr: e.ClientAddr, Helo: e.Helo, Protocol: e.Protocol, SASLUser: e.SASLUser, Stage: e.Stage,
		Notice: e.Notice, NewID: e.NewID, Target: e.Target, By: e.By, Tenant: e.Tenant, Campaign: e.Campaign, List: e.List,
		Feedback: e.Feedback, Unverified: e.Unverified, Recipients: e.Recipients[:min(len(e.Recipients), MaxRecipients)]}
	if e.FromMessage {
		d.Sender = &e.Sender
	}
	if e.Delays != nil {
		seconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }
		delay := seconds(e.Delay)
		d.Delay = &delay
		for _, one := range e.Delays {
			d.Delays = append(d.Delays, seconds(one))
		}
	}
	if !e.Until.IsZero() {
		d.Until = e.Until.UTC().Format(time.RFC3339)
	}
	return d
}

// All of an event is as package json writes it, whichever of its fields are there, and whatever strangers have put into them.
func TestAsPackageJSON(t *testing.T) {
	t.Parallel()
	awkward := rapid.SampledFrom([]string{"", "", "x", "<a&b>", "\"\\/", "\x00\x1f\x7f\b\f\n\r\t", "\u2028\u2029", "\xff", "\xe2\x80", "\xed\xa0\x80", "\ufffd", "\U0001f600", "é", "\xf4\x90\x80\x80"})
	text := rapid.Map(rapid.SliceOfN(awkward, 0, 4), func(s []string) string { return strings.Join(s, "") })
	rapid.Check(t, func(t *rapid.T) {
		var e Event
		v := reflect.ValueOf(&e).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); f.Interface().(type) {
			case Kind:
				f.SetString(string(rapid.SampledFrom(Kinds()).Draw(t, "kind")))
			case string:
				f.SetString(text.Draw(t, v.Type().Field(i).Name))
			case []string:
				f.Set(reflect.ValueOf(rapid.SliceOfN(text, 0, 3).Draw(t, "list")))
			case int, int64:
				f.SetInt(rapid.SampledFrom([]int64{0, 1, 100000}).Draw(t, "number"))
			case bool:
				f.SetBool(rapid.Bool().Draw(t, "bool"))
			case time.Time:
				if i == 1 || rapid.Bool().Draw(t, "there is a time") {
					f.Set(reflect.ValueOf(noon.Add(time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "time")))))
				}
			case time.Duration:
				f.SetInt(rapid.Int64Range(-1e9, 1e15).Draw(t, "delay"))
			case *[4]time.Duration:
				if rapid.Bool().Draw(t, "an attempt") {
					f.Set(reflect.ValueOf(&[4]time.Duration{0, 999, time.Microsecond, time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "delays"))}))
				}
			default:
				t.Fatalf("no values for the field %s", v.Type().Field(i).Name)
			}
		}
		host := text.Draw(t, "host")
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(documented(&e, host)); err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(string(e.JSON(host)), `","kind":`)
		if want := strings.TrimSuffix(strings.TrimPrefix(b.String(), `{"kind":`), "\n"); got != want {
			t.Errorf("%+v\nis   %s\nnot  %s", e, got, want)
		}
	})
}

// An event costs little, since there are two for each message.
func BenchmarkJSON(b *testing.B) {
	list := samples()
	for _, e := range []*Event{&list[0], &list[3]} {
		b.Run(string(e.Kind), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.JSON("mail.example.org")
			}
		})
	}
}

// Nothing that strangers say makes an event that is no line of JSON, or a large one.
func FuzzJSON(f *testing.F) {
	f.Add("a\r\nb\x00", "\xff\xfe", "<>&\"\\")
	f.Add(strings.Repeat("é", 2000), "", "x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		e := Event{Kind: Rejected, Time: noon, QueueID: a, MessageID: b, Sender: c, FromMessage: true, Recipient: a, Original: b, Reply: c, Helo: a,
			ClientName: b, ClientAddr: c, SASLUser: a, Relay: b, Target: c}
		for range 200 {
			e.Recipients = append(e.Recipients, a)
		}
		got := e.JSON(a)
		var m map[string]any
		if err := json.Unmarshal(got, &m); err != nil || bytes.ContainsAny(got, "\r\n\x00") {
			t.Errorf("%q: %v", got, err)
		}
		if list, _ := m["recipients"].([]any); len(list) > MaxRecipients {
			t.Errorf("%d recipients", len(list))
		}
	})
}

// Lines that are no events, and some that are.
func TestOf(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		line maillog.Event
		want Kind
	}{
		{maillog.Delivery{Status: "deliverable"}, ""},
		{maillog.Delivery{Status: "undeliverable"}, ""},
		{maillog.Delivery{Status: "SOFTBOUNCE"}, Deferred},
		{maillog.Reject{Action: "warn"}, ""},
		{maillog.Reject{Action: "milter-reject"}, Rejected},
		{maillog.Reject{Action: "milter-discard"}, Discarded},
		{&maillog.ContentCheck{Reject: maillog.Reject{Action: "reject"}}, Rejected},
		{maillog.ContentCheck{Reject: maillog.Reject{Action: "info"}}, ""},
		{maillog.ScreenReject{From: "s@from.test", To: "r@to.test", Reply: "550 5.5.1 Protocol error"}, Rejected},
		{maillog.Removed{ID: "x"}, ""},
		{maillog.Expired{ID: "x"}, ""}, // that is told of each recipient
	} {
		if e, ok := Of(noon, x.line); ok != (x.want != "") || e.Kind != x.want {
			t.Errorf("%+v: %s", x.line, e.Kind)
		}
	}
}

func TestSplitRelay(t *testing.T) {
	t.Parallel()
	for relay, want := range map[string][3]string{
		"none":                      {},
		"local":                     {"local", "", ""},
		"mx.test[192.0.2.1]:25":     {"mx.test", "192.0.2.1", "25"},
		"mx.test[2001:db8::1]:587":  {"mx.test", "2001:db8::1", "587"},
		"h.test[private/lmtp]":      {"h.test", "private/lmtp", ""},
		"h.test[/run/dovecot/lmtp]": {"h.test/run/dovecot/lmtp", "", ""},
		"odd[x":                     {"odd[x", "", ""},
	} {
		host, addr, port := splitRelay(relay)
		if got := [3]string{host, addr, port}; got != want {
			t.Errorf("%s: got %q", relay, got)
		}
	}
}

// A complaint that is withdrawn is not taken for the complaint that has come twice.
func TestComplaintsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, feedback := range []string{"abuse", "not-spam", "abuse"} {
		e := Event{Kind: Complaint, Time: time.Unix(int64(len(seen)), 0), QueueID: "4jWn4F1YhnzSshsm4", Recipient: "joe@example.net", Feedback: feedback}
		id, _, _ := strings.Cut(string(e.JSON("h")), `","kind"`)
		seen[id] = true
	}
	if len(seen) != 2 {
		t.Errorf("identifiers: %v", seen)
	}
}
