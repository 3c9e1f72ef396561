package agent

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
)

// logLines keeps what is logged.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (*logLines) Format() maillog.Format { return maillog.Plain }
func (*logLines) Close() error           { return nil }
func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func TestFilter(t *testing.T) {
	t.Parallel()
	const rules = `default_delivery_status_filter = inline:{
		{5.1.1 unknown user = 4.1.1 maybe later}
		{4.2.2 mailbox full = 5.2.2 mailbox is full for good}
		{2.0.0 delivered = 2.0.1 delivered indeed}
		{2.0.0 fine = 4.0.0 not so fine}
		{4.3.0 odd = strange}}
`
	for name, tt := range map[string]struct {
		config string
		probe  bool
		say    func(r *Request)
		want   string
		log    string // part of what is logged
	}{
		"never becomes later": {say: func(r *Request) { r.Bounce(0, dsn.S(5, 1, 1), "unknown user", Detail{}) },
			want: "delayed 4.1.1 maybe later", log: "dsn=4.1.1, status=deferred (maybe later)"},
		"later becomes never": {say: func(r *Request) { r.Defer(0, dsn.S(4, 2, 2), "mailbox full", Detail{}) },
			want: "failed 5.2.2 mailbox is full for good", log: "dsn=5.2.2, status=bounced (mailbox is full for good)"},
		"later becomes never, softly": {config: "soft_bounce = yes\n",
			say:  func(r *Request) { r.Defer(0, dsn.S(4, 2, 2), "mailbox full", Detail{}) },
			want: "delayed 4.2.2 mailbox is full for good", log: "dsn=4.2.2, status=SOFTBOUNCE (mailbox is full for good)"},
		"success stays success": {say: func(r *Request) { r.Sent(0, dsn.S(2, 0, 0), "delivered", Detail{}) },
			want: "delivered 2.0.1 delivered indeed", log: "dsn=2.0.1, status=sent (delivered indeed)"},
		"success becomes no failure": {say: func(r *Request) { r.Sent(0, dsn.S(2, 0, 0), "fine", Detail{}) },
			want: "delivered 2.0.0 fine", log: "local_delivery_status_filter: \"4.0.0 not so fine\": cannot turn 2.0.0 into that"},
		"table fails": {config: "local_delivery_status_filter = fail:x\n",
			say:  func(r *Request) { r.Bounce(0, dsn.S(5, 1, 1), "unknown user", Detail{}) },
			want: "failed 5.1.1 unknown user", log: "warning: local_delivery_status_filter: fail:x: lookup of"},
		"no status": {say: func(r *Request) { r.Defer(0, dsn.S(4, 3, 0), "odd", Detail{}) },
			want: "delayed 4.3.0 odd", log: "expected an enhanced status code and a text"},
		"probe": {probe: true, say: func(r *Request) { r.Defer(0, dsn.S(4, 2, 2), "mailbox full", Detail{}) },
			want: "undeliverable 5.2.2 mailbox is full for good", log: "status=undeliverable"},
		"parts": {say: func(r *Request) {
			p := r.Part(0, "other@b.test", dsn.Failed, dsn.S(5, 1, 1), "unknown user", Detail{})
			r.Adopt(0, mail.Outcome{Action: p.Action, Status: p.Status, Reason: p.Reason})
		}, want: "delayed 4.1.1 maybe later", log: "to=<other@b.test>, orig_to=<a@b.test>, relay=none, dsn=4.1.1, status=deferred"},
		"no entry": {say: func(r *Request) { r.Defer(0, dsn.S(4, 4, 1), "timed out", Detail{}) }, want: "delayed 4.4.1 timed out", log: "dsn=4.4.1, status=deferred (timed out)"},
		"own filter": {config: "local_delivery_status_filter =\n",
			say:  func(r *Request) { r.Bounce(0, dsn.S(5, 1, 1), "unknown user", Detail{}) },
			want: "failed 5.1.1 unknown user", log: "status=bounced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.LoadString(rules + tt.config)
			if err != nil {
				t.Fatal(err)
			}
			sink := new(logLines)
			log := maillog.New("local", sink)
			env := mail.Envelope{ID: "Q", Recipients: []mail.Recipient{{Address: "a@b.test"}}}
			if tt.probe {
				env.Trace = mail.TraceProbe
			}
			r := NewTestRequest(env, "b.test", nil, log)
			r.Envelope.Arrival = r.started
			r.Configure(cfg, "local")
			tt.say(r)
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			o := r.Outcomes()[0]
			if got := o.Action.String() + " " + o.Status.String() + " " + o.Reason; got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if r.Deferred(0) != (o.Action == dsn.Deferred) || r.Pending(0) {
				t.Error("Deferred and Pending do not tell")
			}
			if got := delays.ReplaceAllString(sink.b.String(), ""); !strings.Contains(got, tt.log) {
				t.Errorf("log:\n%s\nwant in it: %s", got, tt.log)
			}
		})
	}
}

// delays is what a log line says of time that passed.
var delays = regexp.MustCompile(`delay=[\d.]+, delays=[\d./]+, `)

func TestFilterOfPrograms(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("default_delivery_status_filter = static:{5.0.0 no}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"smtp", "lmtp", "local", "virtual", "pipe"} {
		f := OpenFilter(cfg, program, nil)
		if f == nil {
			t.Fatalf("%s has no filter", program)
		}
		if _, status, _ := f.apply(dsn.Deferred, dsn.S(4, 0, 0), "later"); status != dsn.S(5, 0, 0) {
			t.Errorf("%s: %s", program, status)
		}
		f.Close()
	}
	if f := OpenFilter(cfg, "error", nil); f != nil {
		t.Error("error has a filter")
	}
	if cfg, err = config.LoadString(""); err != nil {
		t.Fatal(err)
	}
	f := OpenFilter(cfg, "smtp", nil)
	if f != nil {
		t.Error("a filter without a table")
	}
	f.Close()
	// What is wrong with a table is in the log, and a filter that is closed has freed it.
	if cfg, err = config.LoadString("smtp_delivery_status_filter = nonsense:x\n"); err != nil {
		t.Fatal(err)
	}
	log := new(logLines)
	f = OpenFilter(cfg, "smtp", maillog.New("postfix/smtp", log))
	f.log.Flush()
	if !strings.Contains(log.String(), "nonsense") {
		t.Errorf("the log: %s", log)
	}
	f.Close()
	for value, want := range map[string]string{"5.1.1 no": "5.1.1 no", "5.1.1   no\t": "5.1.1 no", "2.0.0 well": `"2.0.0 well": cannot turn 4.2.0 into that`, "no": `"no": expected an enhanced status code and a text`} {
		status, text, err := filtered(dsn.S(4, 2, 0), value)
		if err != nil {
			text = err.Error()
			if status != dsn.S(4, 2, 0) {
				t.Errorf("%s: %s", value, status)
			}
		} else {
			text = status.String() + " " + text
		}
		if text != want {
			t.Errorf("%s: %s", value, text)
		}
	}
}

// String is all that was logged.
func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
