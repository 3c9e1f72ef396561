package console

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"math"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"posthaste/internal/history"
	"posthaste/internal/mail"
	"posthaste/internal/overview"
	"posthaste/internal/selection"
	"posthaste/internal/whatif"
)

//go:embed web
var web embed.FS

// A page is what all pages have in common.
type page struct {
	Title   string
	Host    string
	Assets  string // path of the files that pages need
	Path    string // with its query
	Session *session
	Note    string // what came of what was done before
	Failure string
	Body    any
}

// Operates says whether the user may change something.
func (p *page) Operates() bool { return p.Session != nil && p.Session.may(operate) }

// Reads says whether the user may read what messages say.
func (p *page) Reads() bool { return p.Session != nil && p.Session.may(read) }

// CSRF is what each form must have in it.
func (p *page) CSRF() string { return p.Session.csrf }

// User is who has logged in.
func (p *page) User() string { return p.Session.user }

// An actForm is a button, or a form, that does something.
type actForm struct {
	*page
	Name, Label, Confirm string
	Fields               [][2]string // those that the user does not see
}

// functions are what templates call besides. What strangers have written goes through vis.
func functions() template.FuncMap {
	return template.FuncMap{
		"number": number, "size": size, "join": strings.Join, "rate": func(v float64) string { return overview.Number(int64(math.Round(v))) }, "vis": visible, "stamp": stamp, "ago": func(t time.Time) string { return overview.Span(time.Since(t)) },
		"heat": heat, "named": named,
		"side": sideName, "placed": placed, "lower": strings.ToLower,
		"cells": cells, "total": total, "all": all, "domain": domainName, "place": func(name string) string { return "/destination/" + url.PathEscape(name) },
		"form": func(p *page, name, label, confirm string, fields ...string) actForm {
			return newForm(p, name, label, confirm, fields)
		},
		"forms": newForm,
		"wait":  whatif.Span, "mean": func(seconds float64) string { return whatif.Span(&seconds) },
		"columns": func() []string { return columnNames }, "chart": chart,
	}
}

// number is a count of any type, with its thousands apart.
func number(n any) string {
	if i, ok := n.(int); ok {
		return overview.Number(int64(i))
	}
	return overview.Number(n.(int64))
}

func newForm(p *page, name, label, confirm string, fields []string) actForm {
	f := actForm{p, name, label, confirm, nil}
	for i := 0; i+1 < len(fields); i += 2 {
		f.Fields = append(f.Fields, [2]string{fields[i], fields[i+1]})
	}
	return f
}

var columnNames = []string{"to 5 min", "10", "20", "40", "80", "160", "320", "640", "1280 min", "more"}

// visible makes what would not be seen, or would change the direction of writing, visible.
func visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

func stamp(t any) string {
	switch t := t.(type) {
	case *time.Time:
		if t != nil {
			return t.Local().Format(time.DateTime)
		}
	case time.Time:
		if !t.IsZero() {
			return t.Local().Format(time.DateTime)
		}
	}
	return ""
}

// domainName is a row's name on a page.
func domainName(name string, senders bool) string {
	if name == "" && senders {
		return "<> (reports)"
	}
	return visible(name)
}

// sideNames are what the rows of a table are, by side.
var sideNames = map[overview.Side]string{overview.ByNexthop: "Next hop", overview.ByTransport: "Transport", overview.ByTenant: "Tenant", overview.BySource: "Source", overview.ByCampaign: "Campaign"}

// sideName is what the rows of a table are.
func sideName(side overview.Side) string { return cmp.Or(sideNames[side], "Domain") }

// placed says whether a row has a page of its own.
func placed(s *overview.Shape, row string) bool {
	return (s.Side == overview.ByRecipient || s.Side == overview.ByNexthop) && row != overview.OthersName && row != history.Unread
}

// heat is the class of a cell: one more for four times as much.
func heat(n int64) string { return fmt.Sprint("h", min((bits.Len64(uint64(n))+1)/2, 9)) }

// A cell is one of the table of ages.
type cell struct {
	N    int64
	Link string // to the messages behind it; empty: there are none, or they cannot be told
}

// told says whether the messages behind a row can be told: those of an earlier time are others by now.
func told(s *overview.Shape, domain string) bool {
	return !strings.HasPrefix(domain, "(") && time.Since(s.At) < time.Hour
}

// total is the cell of all ages.
func total(s *overview.Shape, r overview.ShapeRow) cell {
	c := cell{N: r.Total}
	if c.N > 0 && told(s, r.Domain) {
		c.Link = "/messages?" + conditions(s, r.Domain).Encode()
	}
	return c
}

// cells are a row's, with the way to the messages behind each.
func cells(s *overview.Shape, r overview.ShapeRow) []cell {
	return aged(s, r, told(s, r.Domain), func() url.Values { return conditions(s, r.Domain) })
}

// all are the cells of the row of all domains, that of all ages first. All messages are in it where each has a row or is
// of the others, and where not, no list has just those.
func all(s *overview.Shape) []cell {
	linked := time.Since(s.At) < time.Hour && (s.Side == overview.ByRecipient || s.Side == overview.BySender)
	first := cell{N: s.Total.Total}
	if linked && first.N > 0 {
		first.Link = "/messages?" + url.Values{"queue": s.Queues}.Encode()
	}
	return append([]cell{first}, aged(s, s.Total, linked, func() url.Values { return url.Values{"queue": s.Queues} })...)
}

// aged are cells by age; of makes the conditions that select the mail of all ages.
func aged(s *overview.Shape, r overview.ShapeRow, linked bool, of func() url.Values) (list []cell) {
	for i, n := range r.Counts {
		c := cell{N: n}
		if n > 0 && linked {
			v := of()
			if i > 0 {
				v.Set("older", fmt.Sprint(int(history.Tick/time.Minute)<<(i-1), "m"))
			}
			if i < history.Buckets-1 {
				v.Set("younger", fmt.Sprint(int(history.Tick/time.Minute)<<i, "m"))
			}
			c.Link = "/messages?" + v.Encode()
		}
		list = append(list, c)
	}
	return list
}

// conditions select the mail of a row. What it waits for is as the scheduler has it, as it was counted: where it would
// go by the tables of now may be somewhere else.
func conditions(s *overview.Shape, domain string) url.Values {
	v := url.Values{"queue": s.Queues}
	switch {
	case s.Side == overview.ByNexthop:
		v.Set("waits-for", domain)
	case s.Side == overview.ByTransport:
		v.Set("waits-for", domain+":")
	case s.Side == overview.BySource:
		v.Set("source", domain)
	case s.Side == overview.ByTenant:
		v.Set("tenant", domain)
	case s.Side == overview.ByCampaign:
		v.Set("campaign", domain)
	case !s.Senders:
		v.Set("domain", domain)
	case domain == "":
		v.Set("sender", "<>")
	default:
		v.Set("sender", "@"+domain)
	}
	return v
}

// A view is one page: it makes the title and what the template of that name shows. With an error that is the page of failures, or
// where there is something to show, the page with the error on it.
type view struct {
	path, template string
	make           func(c *console, q *query, r *http.Request) (title string, body any, err error)
}

func views() []view {
	return []view{
		{"/{$}", "now", func(c *console, q *query, _ *http.Request) (string, any, error) {
			c.live.poke()
			return "Now", nowBody{c.live.view(), c.machine.look(c.now()), c.day.waiting(), c.day.flow()}, nil
		}},
		{"/queue", "queue", viewShape},
		{"/messages", "messages", func(c *console, q *query, _ *http.Request) (string, any, error) {
			return viewMessages(c, q)
		}},
		{"/message/{id}", "message", viewMessage},
		{"/destination/{name}", "destination", viewDestination},
		{"/destination", "", nil}, // the form in the head of each page: see register
		{"/search", "search", viewSearch},
		{"/whatif", "whatif", viewWhatIf},
		{"/suspended", "suspended", func(c *console, q *query, _ *http.Request) (string, any, error) {
			orders, err := c.mta.orders(q.ctx)
			return "What operators have ordered for now", orders, err
		}},
	}
}

// A nowBody is the first page.
type nowBody struct {
	*overview.Now
	System  *System
	Waiting []point
	Flow    []series
}

// A nowPart is what of the first page is sent anew.
type nowPart struct {
	*overview.Now
	System *System
}

// Part is that of the page as it is sent first.
func (b nowBody) Part() nowPart { return nowPart{b.Now, b.System} }

// A shapeBody is the table of ages.
type shapeBody struct {
	*overview.Shape
	At     string
	Chosen map[string]bool
	First  string // since when there are samples
	Live   string // where it is sent anew
}

func viewShape(c *console, q *query, r *http.Request) (string, any, error) {
	for name := range q.values {
		if q.values[name] = slices.DeleteFunc(q.values[name], func(v string) bool { return v == "" }); len(q.values[name]) == 0 {
			delete(q.values, name)
		}
	}
	if q.get("at") == "" {
		c.live.poke()
	}
	s, err := c.opShape(q)
	if err != nil {
		return "Queue", nil, err
	}
	b := shapeBody{Shape: s.(*overview.Shape), At: q.get("at"), Chosen: map[string]bool{}}
	for _, name := range b.Queues {
		b.Chosen[name] = true
	}
	if first, err := history.First(c.mta.history); err == nil {
		b.First = stamp(first)
	}
	if b.At == "" {
		b.Live = "/live/queue?" + q.values.Encode()
	}
	return "Queue", b, nil
}

// AllQueues are those that there are.
func (b shapeBody) AllQueues() []string { return history.Queues }

// named says whether a list has a column for nodes: they share the queue.
func named(list []Message) bool {
	return slices.ContainsFunc(list, func(m Message) bool { return m.Node != "" || m.NodeDown })
}

// A messagesBody is a list of messages.
type messagesBody struct {
	*Messages
	NextLink string
	Few      bool // there is less than a page so far: the browser goes on by itself
	Where    url.Values
	Counting string   // the way to the page that says how many there are in all; empty: there are no conditions
	Counted  *Counted // that page; then something can be done to all
	Fields   []string // names and values of the conditions, for a form
}

func viewMessages(c *console, q *query) (string, any, error) {
	counting := q.get("counted") != ""
	delete(q.values, "counted")
	list, err := c.opMessages(q)
	if err != nil {
		return "Messages", nil, err
	}
	b := messagesBody{Messages: list.(*Messages), NextLink: nextLink(q.values, list.(*Messages).Next), Where: url.Values{}}
	b.Few = b.NextLink != "" && len(b.Messages.Messages) < pageItems
	for _, name := range selection.Names() {
		for _, v := range q.values[name] {
			if v != "" {
				b.Where.Add(name, v)
				b.Fields = append(b.Fields, name, v)
			}
		}
	}
	if len(b.Where) == 0 {
		return "Messages", b, nil
	}
	b.Counting = "/messages?counted=yes&" + b.Where.Encode()
	if counting {
		counted, err := c.opCount(q)
		if err != nil {
			return "Messages", nil, err
		}
		b.Counted = counted.(*Counted)
	}
	return "Messages", b, nil
}

// Form are the fields of a form that does something to all.
func (b messagesBody) Form(verb string) []string {
	return append(slices.Clone(b.Fields), "verb", verb, "count", fmt.Sprint(b.Counted.Messages), "at", b.Counted.At.Format(time.RFC3339Nano))
}

func nextLink(v url.Values, next int) string {
	if next == 0 {
		return ""
	}
	v = url.Values(http.Header(v).Clone())
	v.Set("cursor", fmt.Sprint(next))
	return "/messages?" + v.Encode()
}

// A messageBody is one message: as it is in the queue, if it is there, and what the log has of it.
type messageBody struct {
	ID      string
	Queued  *Explained
	Found   *Found
	LogSays string // why there is nothing of the log
}

func viewMessage(c *console, q *query, r *http.Request) (string, any, error) {
	q.values = url.Values{"id": {r.PathValue("id")}}
	b := messageBody{ID: q.get("id")}
	title := "Message " + b.ID
	m, err := c.opMessage(q)
	if err == nil {
		b.Queued = m.(*Explained)
	} else if !errors.Is(err, errNoMessage) {
		return title, nil, err
	}
	found, err := c.opSearch(&query{ctx: q.ctx, session: q.session, values: url.Values{"q": {b.ID}}})
	if err != nil {
		b.LogSays = err.Error()
	} else if b.Found = found.(*Found); b.Queued == nil && len(b.Found.Messages) == 0 {
		return title, nil, errNoMessage
	}
	return title, b, nil
}

// A destinationBody is a destination, and how its mail went.
type destinationBody struct {
	*Destination
	Rows    []queueRow
	Waiting []point
}

// Courses are the charts of one next hop: how it has fared in the last hours.
func (destinationBody) Courses(d overview.Destination) []series {
	list := []series{{"Window", nil}, {"Deliveries at once", nil}, {"Positive feedback, in hundredths of a step", nil}, {"Negative feedback, in hundredths of a step", nil},
		{"Sessions by the minute", nil}, {"Of these turned away", nil}, {"Connections opened by the minute", nil}, {"Milliseconds of a session", nil}}
	for i := range d.Course {
		m := &d.Course[i]
		for k, v := range [...]int{m.Window, m.Busy, m.Positive, m.Negative, m.Sessions, m.Away, m.Opened, int(m.Took)} {
			list[k].Points = append(list[k].Points, point{m.At, int64(v)})
		}
	}
	return list
}

// A queueRow is a destination's mail in one queue.
type queueRow struct {
	Queue string
	overview.ShapeRow
	Cells []cell
}

func viewDestination(c *console, q *query, r *http.Request) (string, any, error) {
	q.values = url.Values{"name": {r.PathValue("name")}}
	name := q.get("name")
	d, err := c.opDestination(q)
	if err != nil {
		return name, nil, err
	}
	b := destinationBody{Destination: d.(*Destination), Waiting: c.day.waitingFor(name)}
	c.freshen(q.ctx)
	if s := c.live.latest(); s != nil {
		for _, queue := range history.Queues {
			t := overview.Table(s, []string{queue}, overview.ByRecipient, history.MaxRows)
			for _, row := range t.Rows {
				if strings.EqualFold(row.Domain, name) {
					b.Rows = append(b.Rows, queueRow{queue, row, cells(t, row)})
				}
			}
		}
	}
	return name, b, nil
}

// A searchBody is the form, and what was found.
type searchBody struct {
	Q, Reply, Text, Since, Until string
	Asked                        bool
	Queued                       []Message // empty with Text, which the queue does not have
	QueueNext                    []nextList
	Found                        *Found
	LogSays                      string
}

// A nextList is where a list of the queue goes on that a search has begun.
type nextList struct{ What, Link string }

func viewSearch(c *console, q *query, r *http.Request) (string, any, error) {
	b := searchBody{Q: strings.TrimSpace(q.get("q")), Reply: strings.TrimSpace(q.get("reply")), Text: strings.TrimSpace(q.get("text")), Since: q.get("since"), Until: q.get("until")}
	if b.Asked = b.Q != "" || b.Reply != "" || b.Text != "" || b.Since != ""; !b.Asked {
		return "Search", b, nil
	}
	for _, v := range queueConditions(&b) {
		list, err := c.opMessages(&query{ctx: q.ctx, values: v})
		if err != nil {
			return "Search", nil, err
		}
		if link := nextLink(v, list.(*Messages).Next); link != "" {
			b.QueueNext = append(b.QueueNext, nextList{listName(v), link})
		}
		for _, m := range list.(*Messages).Messages {
			if !slices.ContainsFunc(b.Queued, func(o Message) bool { return o.ID == m.ID }) && len(b.Queued) < pageItems {
				b.Queued = append(b.Queued, m)
			}
		}
	}
	found, err := c.opSearch(q)
	if err != nil {
		b.LogSays = err.Error()
	} else {
		b.Found = found.(*Found)
	}
	return "Search", b, nil
}

// listName says by which conditions a list is.
func listName(v url.Values) string {
	var list []string
	for _, name := range selection.Names() {
		for _, value := range v[name] {
			list = append(list, name+"="+value)
		}
	}
	return strings.Join(list, " ")
}

// queueConditions are the lists of the queue that a search is for: none with a part of a line of the log.
func queueConditions(b *searchBody) (list []url.Values) {
	what, reply := b.Q, b.Reply
	if b.Text != "" {
		return nil
	}
	add := func(name, value string) {
		v := url.Values{name: {value}}
		if reply != "" {
			v.Set("reply", reply)
		}
		list = append(list, v)
	}
	switch {
	case what == "" && reply != "":
		list = append(list, url.Values{"reply": {reply}})
	case what == "" || mail.QueueID(what).Valid() && len(what) > 12:
	case strings.Contains(what, "@") || what == "<>":
		add("sender", what)
		if what != "<>" {
			add("recipient", what)
		}
	case !strings.ContainsAny(what, "/ <>"):
		add("destination", what)
	}
	return list
}

// render writes a page. Nothing of it is sent when a template fails.
func (c *console) render(w http.ResponseWriter, status int, name string, p *page) {
	var b bytes.Buffer
	if err := c.templates[name].ExecuteTemplate(&b, "page", p); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // who has gone does not read it
}

// parseTemplates makes a template of each page.
func parseTemplates() map[string]*template.Template {
	all := make(map[string]*template.Template)
	for _, name := range []string{"now", "queue", "messages", "message", "destination", "search", "suspended", "whatif", "header", "welcome", "login", "failure"} {
		all[name] = template.Must(template.New(name).Funcs(functions()).ParseFS(web, "web/page.html", "web/"+name+".html"))
	}
	return all
}

// fragment makes the part of a page that is sent anew.
func (c *console) fragment(name string, body any) func(*bytes.Buffer) error {
	return func(b *bytes.Buffer) error { return c.templates[name].ExecuteTemplate(b, "live", body) }
}
