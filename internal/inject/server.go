package inject

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/table"
	"posthaste/internal/webserver"
)

// limits are those of main.cf.
type limits struct {
	recipients  int           // of a message
	attachments int           // of a message
	batch       int           // messages of a request
	message     int64         // message_size_limit; 0: none
	item        int           // octets of a message in JSON
	schedule    time.Duration // how far ahead send_at may be
	unsubscribe string        // the field that asks cleanup for a link to unsubscribe; empty: there are none
}

// A server answers requests. Its methods may be called concurrently.
type server struct {
	door    *door
	keeper  keeper // the suppress service, for the role suppress
	tokens  *apitoken.Store
	clients *table.List // inject_clients
	log     *maillog.Logger
	now     func() time.Time
	limits  limits
	memory  *budget
	items   sync.Pool // of *[]byte: see itemOf
	utf8    bool      // smtputf8_enable
	version string
}

// handler makes the whole of it.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, o := range operations() {
		mux.HandleFunc(o.method+" "+o.path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, o) })
	}
	spec := openAPI(operations(), s.version)
	mux.HandleFunc("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(spec)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.problem(w, r, nil, &fault{status: http.StatusNotFound, detail: "there is nothing here; /v1/openapi.json says what there is"})
	})
	return mux
}

// serve answers a request, from whom may make it.
func (s *server) serve(w http.ResponseWriter, r *http.Request, o operation) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	who, err := s.caller(r, cmp.Or(o.role, apitoken.Inject))
	if err == nil {
		control := http.NewResponseController(w)
		r.Body = struct {
			io.Reader
			io.Closer
		}{&body{r: r.Body, control: control, now: s.now}, r.Body}
		if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
			err = &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Encoding: bodies are taken as they are, not compressed"}
		} else {
			err = o.do(s, w, r, who)
		}
	}
	if err != nil {
		s.problem(w, r, who, err)
	}
}

// caller says who makes a request, or why it may not be made: its token needs a role.
func (s *server) caller(r *http.Request, role string) (*caller, error) {
	who := &caller{client: clientOf(r), tls: r.TLS != nil}
	ok, err := s.clients.MatchClient(r.Context(), who.client.Name, who.client.Addr)
	if err != nil {
		s.log.Warning("%v", err)
		return who, later(retryTime, "temporary lookup failure")
	}
	if !ok {
		return who, &fault{status: http.StatusForbidden, detail: "this address may not hand in mail (inject_clients)"}
	}
	name, token, ok := apitoken.Bearer(r.Header.Get("Authorization"))
	if !ok {
		return who, &fault{status: http.StatusUnauthorized, detail: "a token is needed: Authorization: Bearer TOKEN"}
	}
	t, err := s.tokens.Find(token)
	switch {
	case errors.Is(err, apitoken.ErrUnknown), errors.Is(err, apitoken.ErrExpired):
		return who, &fault{status: http.StatusUnauthorized, detail: err.Error()}
	case err != nil:
		s.log.Warning("%v", err)
		return who, later(retryTime, "the tokens cannot be read")
	case name != "" && name != t.Name:
		return who, &fault{status: http.StatusUnauthorized, detail: "the user's name is not that of the token"}
	}
	who.token = t
	if !t.May(role) {
		return who, &fault{status: http.StatusForbidden, detail: "the token has not the role " + role}
	}
	return who, nil
}

// clientOf is where a request comes from. A socket of this machine has no address: it is localhost, as
// with smtpd.
func clientOf(r *http.Request) mail.Client {
	c := mail.Client{Name: "unknown", Proto: "HTTP"}
	if r.TLS != nil {
		c.Proto = "HTTPS"
	}
	host, port, err := net.SplitHostPort(r.RemoteAddr)
	addr, perr := netip.ParseAddr(host)
	if err != nil || perr != nil {
		c.Name, c.Addr = "localhost", "127.0.0.1"
		return c
	}
	addr = addr.Unmap().WithZone("")
	c.Addr, c.Port = addr.String(), port
	if addr.IsLoopback() {
		c.Name = "localhost"
	}
	return c
}

// problem says why a request is not carried out, to the client and in the log.
func (s *server) problem(w http.ResponseWriter, r *http.Request, who *caller, err error) {
	f := asFault(err)
	e := maillog.InjectRefused{Request: r.Method + " " + r.URL.Path, Status: f.status, Reason: f.Error()}
	if who == nil {
		who = &caller{client: clientOf(r)}
	}
	e.Name, e.Addr = who.client.Name, who.client.Addr
	if who.token != nil {
		e.Token = who.token.Name
	}
	if e.Reason = clip(e.Reason, 300); len(e.Request) > 100 {
		e.Request = clip(e.Request, 100)
	}
	s.log.Log(e)
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="inject"`)
	}
	s.retryAfter(w, f.retry)
	// What is left of the body is not read: a client may send it for as long as it likes.
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	more := map[string]any{}
	maps.Copy(more, f.more)
	if f.field != "" {
		more["field"] = f.field
	}
	webserver.Problem(w, f.status, f.Error(), more)
}

func (s *server) retryAfter(w http.ResponseWriter, after time.Duration) {
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// reply answers with JSON.
func (s *server) reply(w http.ResponseWriter, status int, result any) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	webserver.Reply(w, status, result)
}

// kindOf is the media type of a request's body.
func kindOf(r *http.Request) (string, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return "", &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Type is missing, or no media type"}
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") && kind != "message/rfc822" {
		return "", &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Type: the charset has to be UTF-8"}
	}
	return kind, nil
}

// keyOf is the idempotency key of a request; empty: it has none. It may be in quotes, as a structured
// field would have it.
func keyOf(r *http.Request) (string, error) {
	all := r.Header.Values("Idempotency-Key")
	if len(all) == 0 {
		return "", nil
	}
	key := all[0]
	if len(key) > 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if len(all) > 1 {
		return "", in("Idempotency-Key", malformed("it is there twice"))
	}
	return key, in("Idempotency-Key", checkKey(key))
}

// messages is POST /v1/messages.
func (s *server) messages(w http.ResponseWriter, r *http.Request, who *caller) error {
	kind, err := kindOf(r)
	if err != nil {
		return err
	}
	switch kind {
	case "message/rfc822":
		return s.whole(w, r, who)
	case "application/json", "application/x-ndjson", "application/jsonl":
	default:
		return &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Type is message/rfc822, application/json or application/x-ndjson"}
	}
	if err := noQuery(r); err != nil {
		return err
	}
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	mine := &share{b: s.memory}
	defer mine.end()
	stream := &items{r: r.Body, limit: s.limits.item, room: func(n int) error { return mine.take(r.Context(), n) }}
	lines := kind != "application/json"
	list, err := stream.isList()
	if err != nil {
		return err
	}
	if list || lines {
		if key != "" {
			return in("Idempotency-Key", refuse("in a batch each message has its own idempotency_key"))
		}
		return s.batch(w, r, who, stream, lines)
	}
	item, err := stream.only()
	if err != nil {
		return err
	}
	result, replayed, err := s.single(item, r.URL.Path, key, who, decode)
	if err != nil {
		return err
	}
	s.answer(w, r, who, result, replayed)
	return nil
}

// noQuery refuses a query where nobody reads it.
func noQuery(r *http.Request) error {
	if r.URL.RawQuery != "" {
		return malformed("a query is only for message/rfc822")
	}
	return nil
}

// single carries out one message.
func (s *server) single(item []byte, path, key string, who *caller, decode func([]byte, *limits) (*message, error)) (*Result, bool, error) {
	// The digest is of what came: reading it changes it.
	var what digest
	keyed := key != "" || hasKey(item)
	if keyed {
		h := sha256.New()
		io.WriteString(h, path+"\x00")
		h.Write(item)
		h.Sum(what[:0])
	}
	m, err := decode(item, &s.limits)
	if err != nil {
		return nil, false, err
	}
	if m.key != "" {
		if key != "" && key != m.key {
			return nil, false, in("idempotency_key", refuse("the field Idempotency-Key says another"))
		}
		key = m.key
	}
	if err := m.check(s.now(), &s.limits); err != nil {
		return nil, false, err
	}
	o, err := plan(m, who.token, s.utf8)
	if err != nil {
		return nil, false, err
	}
	return s.door.carry(who, o, key, what)
}

// answer says what came of one message.
func (s *server) answer(w http.ResponseWriter, r *http.Request, who *caller, result *Result, replayed bool) {
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	if result.Status == http.StatusOK {
		s.reply(w, http.StatusOK, result)
		return
	}
	if result.Status == http.StatusServiceUnavailable {
		s.retryAfter(w, retryTime)
	}
	s.log.Log(maillog.InjectRefused{Name: who.client.Name, Addr: who.client.Addr, Token: who.token.Name, Request: r.Method + " " + r.URL.Path, Status: result.Status, Reason: clip(result.Detail, 300)})
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	webserver.Problem(w, result.Status, result.Detail, map[string]any{"refused": result.Refused})
}

// kumo is POST /api/inject/v1.
func (s *server) kumo(w http.ResponseWriter, r *http.Request, who *caller) error {
	kind, err := kindOf(r)
	if err == nil && kind != "application/json" {
		err = &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Type is application/json"}
	}
	if err == nil {
		err = noQuery(r)
	}
	if err != nil {
		return err
	}
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	mine := &share{b: s.memory}
	defer mine.end()
	stream := &items{r: r.Body, limit: s.limits.item, room: func(n int) error { return mine.take(r.Context(), n) }}
	item, err := stream.only()
	if err != nil {
		return err
	}
	result, replayed, err := s.single(item, r.URL.Path, key, who, decodeKumo)
	if err != nil {
		return err
	}
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	answer := KumoResult{SuccessCount: len(result.Messages), FailCount: len(result.Refused), FailedRecipients: []string{}, Errors: []string{}}
	for _, x := range result.Refused {
		answer.FailedRecipients = append(answer.FailedRecipients, x.Recipient)
		answer.Errors = append(answer.Errors, fmt.Sprintf("%s: %s", x.Recipient, x.Detail))
	}
	s.reply(w, http.StatusOK, &answer)
	return nil
}

const (
	// requestTime bounds reading the header of a request, and answerTime writing an answer.
	requestTime, answerTime = 15 * time.Second, 60 * time.Second
	// maxHeader bounds the header of a request, which for message/rfc822 has the envelope.
	maxHeader = 64 << 10
)
