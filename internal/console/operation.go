package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"posthaste/internal/cli"
	"posthaste/internal/history"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/track"
	"posthaste/internal/webserver"
	"posthaste/internal/whatif"
)

// apiPath is where the API is.
const apiPath = "/api/v1"

// An operation is one thing that the API and the pages do. Pages call the same functions as the
// API: what one can do, the other can. OpenAPI is made of this declaration.
type operation struct {
	name    string // of the form on a page, and operationId
	method  string // GET changes nothing
	path    string // below apiPath; what is in braces is a parameter
	role    role
	summary string
	params  []param
	result  any // an empty one of its kind
	do      func(c *console, q *query) (any, error)
}

// A param is a parameter: in the path, of the query of a GET, or in the body of a POST, JSON or a
// form.
type param struct {
	name, doc string
	required  bool
}

// A query is one call of an operation.
type query struct {
	ctx     context.Context
	session session
	client  string
	from    client // of a login
	values  url.Values
}

// by is who gives an order, as the queue manager keeps it.
func (q *query) by() string { return q.session.user + " (console)" }

func (q *query) get(name string) string { return q.values.Get(name) }

// Done is the result of what changes something.
type Done struct {
	Done string `json:"done" doc:"What was done, in words"`
}

// Token is a login.
type Token struct {
	Token   string    `json:"token" doc:"To be sent in the field Authorization: Bearer TOKEN"`
	Role    string    `json:"role" doc:"look or operate; then read, if the user may read what messages say"`
	Expires time.Time `json:"expires" doc:"At the latest; sooner when it is not used for an hour"`
}

var idParam = param{"id", "Queue ID", true}

// operations are all of them.
func operations() []operation {
	list := []operation{
		{"login", "POST", "/session", nobody, "Log in", []param{{"user", "Name, as in console_user_maps", true}, {"password", "Password", true}}, Token{}, (*console).opLogin},
		{"logout", "POST", "/session/end", look, "Log out: the token is good no longer", nil, Done{}, (*console).opLogout},
		{"now", "GET", "/now", look, "What hurts now: queues, the domains that most mail waits for, suspensions", nil, overview.Now{}, (*console).opNow},
		{"system", "GET", "/system", look, "Disks, spool, log, certificates, and what posthaste check -v says", nil, System{}, (*console).opSystem},
		{"shape", "GET", "/shape", look, "How the mail is spread over domains and age, as qshape says",
			[]param{{"queue", "incoming, active, deferred or hold; may be repeated. Without it deferred, active and incoming", false},
				{"side", "recipient, sender, nexthop, transport, tenant, campaign or source; without it recipient", false}, {"at", "An earlier time: 2026-11-24T08:00", false}, {"rows", "At most so many domains, 1 to 150", false}}, overview.Shape{}, (*console).opShape},
		{"messages", "GET", "/messages", look, "Messages in the queue that fulfil all conditions, as posthaste queue list",
			append(conditionParams(), param{"cursor", "Where the list goes on, from the answer before", false}), Messages{}, (*console).opMessages},
		{"count", "GET", "/messages/count", look, "How many messages fulfil all conditions, and their octets", conditionParams(), Counted{}, (*console).opCount},
		{"all", "POST", "/messages", operate, "Do something to all messages that fulfil all conditions; there must be one",
			append(conditionParams(), param{"verb", "What: hold, release, retry, requeue, return or delete", true},
				param{"count", "How many messages are meant: if others fulfil the conditions by now nothing is done", true},
				param{"at", "When they were counted, as the answer said: ages count from there, and what came later is not meant. Without it now", false}), Done{}, (*console).opAll},
		{"message", "GET", "/messages/{id}", look, "One message, and why it is in the queue", []param{idParam}, Explained{}, (*console).opMessage},
		{"content", "POST", "/messages/{id}/content", read, "Read what a message says; who read it, and why, is logged", []param{idParam,
			{"reason", "Why, in a line", true}, {"part", "all, or header; without it all", false}}, Content{}, (*console).opContent},
		{"destination", "GET", "/destinations/{name}", look, "How things are with a destination, as posthaste explain",
			[]param{{"name", "A domain, .domain, [host]:port or transport:nexthop", true}}, Destination{}, (*console).opDestination},
		{"flush", "POST", "/destinations/{name}/flush", operate, "Try the mail for a destination now", []param{{"name", "As above", true}}, Done{}, (*console).opFlush},
		{"suspensions", "GET", "/suspensions", look, "What is suspended", nil, []overview.Suspension{}, (*console).opSuspensions},
		{"suspend", "POST", "/suspensions", operate, "Have mail wait", []param{{"target", "As posthaste suspended prints it: example.com, smtp:, sender=@example.org ...", true},
			{"reason", "Why, in a line", false}, {"for", "How long: 30m, 2h, 1d. Without it until it is resumed", false}}, Done{}, (*console).opSuspend},
		{"resume", "POST", "/suspensions/resume", operate, "Have mail tried again", []param{{"target", "Of a suspension", true}}, Done{}, (*console).opResume},
		{"limits", "GET", "/limits", look, "What operators have limited for now", nil, []overview.Limit{}, (*console).opLimits},
		{"limit", "POST", "/limits", operate, "Limit the deliveries to a destination at once", []param{{"target", "A next hop: a domain, .domain, [host]:port, transport:nexthop, transport: or *", true},
			{"limit", "So many deliveries, 1 at least", true}, {"raise", "yes: it counts even where main.cf allows less", false}, {"reason", "Why, in a line", false},
			{"for", "How long: 30m, 2h, 1d. Without it until it is lifted", false}}, Done{}, (*console).opLimit},
		{"unlimit", "POST", "/limits/lift", operate, "Lift a limit", []param{{"target", "Of a limit", true}}, Done{}, (*console).opUnlimit},
		{"diversions", "GET", "/diversions", look, "What goes by another next hop for now", nil, []overview.Diversion{}, (*console).opDiversions},
		{"divert", "POST", "/diversions", operate, "Send mail by another next hop", []param{{"target", "A domain, .domain, [host]:port, transport:nexthop, transport: or *; domain=DOMAIN or nexthop=NEXTHOP", true},
			{"nexthop", "Where it goes instead: a domain, [host]:port, transport:nexthop or transport:", true}, {"reason", "Why, in a line", false},
			{"for", "How long: 30m, 2h, 1d. Without it until it is ended", false}}, Done{}, (*console).opDivert},
		{"undivert", "POST", "/diversions/end", operate, "End a diversion", []param{{"target", "Of a diversion", true}}, Done{}, (*console).opUndivert},
		{"search", "GET", "/search", look, "Messages and refusals in the log, as posthaste trace",
			[]param{{"q", "A queue ID, address, @domain, Message-ID, client, next hop or login name", false}, {"reply", "A part of a reply", false},
				{"text", "A part of any line of the log", false}, {"since", "2026-11-24T08:00, or 08:00", false}, {"until", "The same", false}}, Found{}, (*console).opSearch},
		{"whatif", "GET", "/whatif", look, "When the queue will be empty, with the settings as they are and with others, as posthaste whatif",
			[]param{{"o", "NAME=VALUE: a parameter of the scheduler's; may be repeated", false}}, whatif.Report{}, (*console).opWhatIf},
	}
	for _, word := range slices.Sorted(maps.Keys(verbs)) {
		list = append(list, operation{word, "POST", "/messages/{id}/" + word, operate, actTexts[word], []param{idParam}, Done{},
			func(c *console, q *query) (any, error) { return c.opAct(q, word) }})
	}
	return list
}

// actTexts say what the verbs do.
var actTexts = map[string]string{"hold": "Put the message on hold", "release": "Release the message from hold", "retry": "Try to deliver the message now",
	"requeue": "Queue the message anew: its addresses are mapped again", "return": "Return the message to its sender now", "delete": "Delete the message, without a word to anybody"}

func conditionParams() (list []param) {
	for _, name := range selection.Names() {
		list = append(list, param{name, "As --" + name + " of posthaste queue; may be repeated", false})
	}
	return list
}

// opNow answers with what is known, and has it known anew for who asks next: a program that looks
// again and again is somebody who looks.
func (c *console) opNow(q *query) (any, error) {
	c.live.poke()
	c.freshen(q.ctx)
	return c.live.view(), nil
}

func (c *console) opSystem(q *query) (any, error) { return c.machine.look(c.now()), nil }

// sample is that of a time, or the latest.
func (c *console) sample(ctx context.Context, at string) (*history.Sample, error) {
	if at == "" {
		c.freshen(ctx)
		if s := c.live.latest(); s != nil {
			return s, nil
		}
		return nil, errDown
	}
	t, clock, err := queueclient.ParseMoment(at, c.now())
	if err != nil {
		return nil, wrong("%v", err)
	}
	if clock && t.After(c.now()) {
		t = t.AddDate(0, 0, -1)
	}
	return history.At(c.mta.history, t)
}

func (c *console) opShape(q *query) (any, error) {
	queues, side := q.values["queue"], overview.Side(cmp.Or(q.get("side"), string(overview.ByRecipient)))
	if len(queues) == 0 {
		queues = []string{"incoming", "active", "deferred"}
	}
	for _, name := range queues {
		if !slices.Contains(history.Queues, name) {
			return nil, wrong("there is no queue %q; the queues are %s", name, strings.Join(history.Queues, ", "))
		}
	}
	if !slices.Contains(overview.Sides, side) {
		return nil, wrong("side is recipient, sender, nexthop, transport, tenant, campaign or source")
	}
	rows := 50
	if text := q.get("rows"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil || rows < 1 || rows > history.MaxRows {
			return nil, wrong("rows is a number from 1 to %d", history.MaxRows)
		}
	}
	s, err := c.sample(q.ctx, q.get("at"))
	if err != nil {
		return nil, err
	}
	out := overview.Table(s, queues, side, rows)
	if now := c.live.view(); q.get("at") == "" {
		out.Nodes, out.Missing = now.Nodes, now.Missing
	} else if c.mta.node != "" {
		out.Nodes = []string{c.mta.node}
	}
	return out, nil
}

func (c *console) opMessages(q *query) (any, error) {
	where, err := c.where(q, c.now())
	if err != nil {
		return nil, err
	}
	cursor := 0
	if text := q.get("cursor"); text != "" {
		if cursor, err = strconv.Atoi(text); err != nil || cursor < 0 {
			return nil, wrong("a cursor is what the answer before has as next")
		}
	}
	list, err := c.mta.list(q.ctx, where, cursor)
	if err != nil {
		return nil, err
	}
	out := &Messages{Messages: []Message{}, Next: list.next, Unread: list.unread}
	for i := range list.items {
		out.Messages = append(out.Messages, message(&list.items[i]))
	}
	return out, nil
}

// queueID is the parameter id.
func (q *query) queueID() (mail.QueueID, error) {
	id := mail.QueueID(q.get("id"))
	if !id.Valid() {
		return "", wrong("%q is no queue ID", string(id))
	}
	return id, nil
}

func (c *console) opMessage(q *query) (any, error) {
	id, err := q.queueID()
	if err != nil {
		return nil, err
	}
	it, err := c.mta.item(q.ctx, id)
	if err != nil {
		return nil, err
	}
	lines, err := c.mta.explain(q.ctx, it)
	if err != nil {
		return nil, err
	}
	return &Explained{message(it), lines}, nil
}

func (c *console) opAct(q *query, word string) (any, error) {
	id, err := q.queueID()
	if err != nil {
		return nil, err
	}
	err = c.audited(q, word, string(id), "", func() error { return c.mta.act(q.ctx, word, id) })
	return &Done{actTexts[word] + ": " + string(id)}, err
}

func (c *console) opDestination(q *query) (any, error) {
	name := q.get("name")
	d, err := c.mta.destination(q.ctx, name)
	if err != nil {
		return nil, err
	}
	if s := c.live.latest(); s != nil {
		d.Waits = overview.WaitsOf(s, name)
	}
	orders, err := c.mta.orders(q.ctx)
	d.Orders = orders.Of(name)
	return d, err
}

func (c *console) opFlush(q *query) (any, error) {
	n, missing := 0, []string(nil)
	err := c.audited(q, "flush", q.get("name"), "", func() (err error) {
		n, missing, err = c.mta.flush(q.ctx, q.get("name"))
		return err
	})
	return &Done{fmt.Sprintf("%s for %s tried now%s", queueclient.Messages(n), q.get("name"), leftOut(missing))}, err
}

func (c *console) opSuspensions(q *query) (any, error) {
	orders, err := c.mta.orders(q.ctx)
	return orders.Suspensions, err
}

// until is when what lasts for so long is over; zero: it does not end by itself.
func (c *console) until(q *query) (until time.Time, err error) {
	if text := q.get("for"); text != "" {
		d, err := selection.ParseTime(text)
		if err != nil {
			return until, wrong("%v", err)
		}
		until = c.now().Add(d).Truncate(time.Second)
	}
	return until, nil
}

func (c *console) opSuspend(q *query) (any, error) {
	until, err := c.until(q)
	if err != nil {
		return nil, err
	}
	err = c.audited(q, "suspend", q.get("target"), q.get("reason"), func() error {
		return c.mta.suspend(q.ctx, q.get("target"), q.by(), q.get("reason"), until)
	})
	return &Done{q.get("target") + " is suspended"}, err
}

func (c *console) opResume(q *query) (any, error) {
	err := c.audited(q, "resume", q.get("target"), "", func() error { return c.mta.end(q.ctx, override.Suspension, q.get("target"), q.by(), errNoSuspension) })
	return &Done{q.get("target") + " is resumed"}, err
}

func (c *console) opLimits(q *query) (any, error) {
	orders, err := c.mta.orders(q.ctx)
	return orders.Limits, err
}

func (c *console) opLimit(q *query) (any, error) {
	until, err := c.until(q)
	if err != nil {
		return nil, err
	}
	most, err := strconv.Atoi(q.get("limit"))
	if err != nil {
		return nil, wrong("limit is a number")
	}
	raise := q.get("raise")
	if raise != "" && raise != "yes" && raise != "no" {
		return nil, wrong("raise is yes or no")
	}
	e := &proto.OverrideEntry{Target: q.get("target"), Most: most, Raises: raise == "yes", By: q.by(), Reason: q.get("reason"), Until: until}
	err = c.audited(q, "limit", fmt.Sprintf("%s to %d", e.Target, most), e.Reason, func() error { return c.mta.limit(q.ctx, e) })
	return &Done{fmt.Sprintf("%s is limited to %d at a time", e.Target, most)}, err
}

func (c *console) opUnlimit(q *query) (any, error) {
	err := c.audited(q, "unlimit", q.get("target"), "", func() error { return c.mta.end(q.ctx, override.Limit, q.get("target"), q.by(), errNoLimit) })
	return &Done{"the limit of " + q.get("target") + " is lifted"}, err
}

func (c *console) opDiversions(q *query) (any, error) {
	orders, err := c.mta.orders(q.ctx)
	return orders.Diversions, err
}

func (c *console) opDivert(q *query) (any, error) {
	until, err := c.until(q)
	if err != nil {
		return nil, err
	}
	e := &proto.OverrideEntry{Target: q.get("target"), Nexthop: q.get("nexthop"), By: q.by(), Reason: q.get("reason"), Until: until}
	what := e.Target + " to " + e.Nexthop
	err = c.audited(q, "divert", what, e.Reason, func() error { return c.mta.divert(q.ctx, e) })
	return &Done{q.get("target") + " is diverted to " + q.get("nexthop")}, err
}

func (c *console) opUndivert(q *query) (any, error) {
	err := c.audited(q, "undivert", q.get("target"), "", func() error { return c.mta.end(q.ctx, override.Diversion, q.get("target"), q.by(), errNoDiversion) })
	return &Done{q.get("target") + " is no longer diverted"}, err
}

func (c *console) opSearch(q *query) (any, error) {
	var t track.Query
	for name, field := range map[string]track.Field{"q": track.Anything, "reply": track.Reply, "text": track.Text} {
		if v := strings.TrimSpace(q.get(name)); v != "" {
			t.Conditions = append(t.Conditions, track.Condition{Field: field, Value: v})
		}
	}
	for name, to := range map[string]*time.Time{"since": &t.Since, "until": &t.Until} {
		if v := q.get(name); v != "" {
			at, _, err := queueclient.ParseMoment(v, c.now())
			if err != nil {
				return nil, wrong("%s: %v", name, err)
			}
			*to = at
		}
	}
	found, more, err := c.mta.trace(q.ctx, t)
	if err != nil {
		return nil, err
	}
	out := &Found{Messages: []*track.Message{}, Refusals: []*track.Refusal{}, More: more}
	for i := range found {
		out.Messages = append(out.Messages, found[i].Messages...)
		if found[i].Refusal != nil {
			out.Refusals = append(out.Refusals, found[i].Refusal)
		}
	}
	return out, nil
}

func (c *console) opLogin(q *query) (any, error) {
	token, s, err := c.login(q.ctx, q.from, q.get("user"), q.get("password"))
	if err != nil {
		return nil, err
	}
	return &Token{token, s.rights(), s.begun.Add(wholeTime)}, nil
}

func (c *console) opLogout(q *query) (any, error) {
	c.sessions.end(&q.session)
	return &Done{"logged out"}, nil
}

// audited logs an act of a user's before it is done, and its failure.
func (c *console) audited(q *query, act, what, reason string, do func() error) error {
	e := maillog.ConsoleAct{User: logged(q.session.user), Client: q.client, Act: act, What: what, Reason: reason}
	c.log(e)
	err := do()
	if err != nil {
		e.Reason, e.Failed = err.Error(), true
		c.log(e)
	}
	return err
}

// A waitError says that somebody has tried too many passwords.
type waitError struct{ wait time.Duration }

func (e *waitError) Error() string {
	return fmt.Sprintf("too many logins have failed: try again in %s", overview.Span(e.wait.Round(time.Second)+time.Second))
}

// logged is a name that somebody claims, as one word: what follows it in the log is ours.
func logged(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == '=' || r == ':' || !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, name[:min(len(name), 100)])
}

// login makes a session for who knows a password.
func (c *console) login(ctx context.Context, from client, user, password string) (token string, s session, err error) {
	return c.admit(ctx, from, user, func() (person, error) { return c.people.login(ctx, from, user, password) })
}

// admit makes a session for whom verify knows, unless too many logins have failed from the client's address, or with that name.
// The login is logged, and so is its failure, with more than the error says.
func (c *console) admit(ctx context.Context, from client, user string, verify func() (person, error)) (token string, s session, err error) {
	keys := []string{"address " + from.address}
	if user != "" { // else nobody knows yet
		keys = append(keys, "user "+user)
	}
	if wait := c.tries.wait(keys...); wait > 0 {
		return "", s, &waitError{wait}
	}
	who, err := verify()
	e := maillog.ConsoleAct{User: logged(cmp.Or(user, "oidc")), Client: from.address, Act: "login"}
	if err != nil {
		e.Reason, e.Failed = err.Error(), true
		c.log(e)
		return "", s, toldOf(err)
	}
	e.User = logged(who.user)
	c.tries.forgive(keys...)
	c.log(e)
	token, s = c.sessions.begin(who)
	return token, s, nil
}

// toldOf is what somebody who is not let in is told.
func toldOf(err error) error {
	var denied *deniedError
	switch {
	case errors.As(err, &denied):
		return errLogin
	case errors.Is(err, errLogin), errors.Is(err, errNoUsers):
		return err
	}
	return errUnverified
}

// statusOf is the HTTP status of an error.
func statusOf(err error) int {
	var fault *wrongError
	var wait *waitError
	var long *http.MaxBytesError
	switch {
	case cli.Status(err) == cli.ExitTemp:
		return http.StatusAccepted // it is ordered of a node that does not answer
	case errors.As(err, &fault):
		return http.StatusBadRequest
	case errors.As(err, &wait), errors.Is(err, errReaders), errors.Is(err, errForecast), errors.Is(err, errForecasts):
		return http.StatusTooManyRequests
	case errors.As(err, &long):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errNoMessage), errors.Is(err, errNoSuspension), errors.Is(err, errNoLimit), errors.Is(err, errNoDiversion), errors.Is(err, history.ErrNone):
		return http.StatusNotFound
	case errors.Is(err, errLogin), errors.Is(err, errProvider), errors.Is(err, errSession):
		return http.StatusUnauthorized
	case errors.Is(err, errRole), errors.Is(err, errReading):
		return http.StatusForbidden
	case errors.Is(err, errNodes), errors.Is(err, errDown), errors.Is(err, errNoUsers), errors.Is(err, errUnverified), errors.Is(err, errElsewhere), errors.Is(err, errLog):
		return http.StatusServiceUnavailable
	}
	switch cli.Status(err) { // of a forecast
	case cli.ExitUsage:
		return http.StatusBadRequest
	case cli.ExitData:
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// call carries an operation out, for whom it is permitted.
func (c *console) call(o *operation, q *query) (any, error) {
	if err := q.session.refused(o.role); err != nil {
		return nil, err
	}
	for name := range q.values {
		if !slices.ContainsFunc(o.params, func(p param) bool { return p.name == name }) {
			return nil, wrong("there is no parameter %q", name)
		}
	}
	for _, p := range o.params {
		if p.required && q.get(p.name) == "" {
			return nil, wrong("the parameter %q is missing", p.name)
		}
	}
	return o.do(c, q)
}

// serveAPI answers a request to the API. Whoever changes something shows a token: a browser sends
// cookies for other sites, and no tokens.
func (c *console) serveAPI(o *operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &query{ctx: r.Context(), client: clientOf(r), from: loginFrom(r), values: url.Values{}}
		if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			q.session = c.bearer(token)
		} else if r.Method == http.MethodGet {
			q.session = c.sessionOf(r)
		}
		result, err := any(nil), c.apiValues(o, q, r)
		if err == nil {
			result, err = c.call(o, q)
		}
		if m, ok := result.(*Content); ok && err == nil {
			m.send(w)
			return
		}
		if err == nil {
			webserver.Reply(w, http.StatusOK, result)
			return
		}
		status := statusOf(err)
		tellWait(w, err)
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		webserver.Problem(w, status, err.Error(), nil)
	}
}

// bearer is the session that a token stands for: one that a login has begun, or for as long as the
// request takes one of a program with a token of "posthaste token".
func (c *console) bearer(token string) session {
	if s, ok := c.sessions.find(token); ok || c.programs == nil {
		return s
	}
	t, err := c.programs.Find(token)
	if err != nil {
		return session{}
	}
	who := person{user: tokenPrefix + t.Name}
	for _, r := range []role{look, operate, read} {
		if t.May(r.String()) {
			_ = who.grant(r.String()) // it is a role
		}
	}
	return session{person: who}
}

// apiValues reads the parameters.
func (c *console) apiValues(o *operation, q *query, r *http.Request) error {
	if r.Method == http.MethodGet {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return wrong("the query cannot be read: %v", err)
		}
		q.values = values
	} else if err := jsonValues(q.values, r); err != nil {
		return err
	}
	for _, p := range o.params {
		if strings.Contains(o.path, "{"+p.name+"}") {
			q.values.Set(p.name, r.PathValue(p.name))
		}
	}
	return nil
}

// jsonValues reads an object of texts and lists of texts.
func jsonValues(values url.Values, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return wrong("the body is to be application/json")
	}
	fields := map[string]any{}
	if err := json.Unmarshal(body, &fields); err != nil {
		return wrong("the body is to be a JSON object: %v", err)
	}
	for name, v := range fields {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, v := range list {
			text, ok := v.(string)
			if !ok {
				return wrong("%q is to be a text, or a list of texts", name)
			}
			values.Add(name, text)
		}
	}
	return nil
}
