// What is done to a message on its way out, when main.cf asks for any of it:
// generic addresses, checks, and the conversion for servers without 8BITMIME. Other
// mail never gets here.

package smtp

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"posthaste/internal/addrform"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// outputRules are what is done to a message on its way out: addresses mapped
// (smtp_generic_maps), fields and lines checked (smtp_header_checks and its kin),
// eight-bit parts encoded for a server that does not take them. They are read once,
// and used by all deliveries at once.
type outputRules struct {
	generic *table.Maps
	search  *table.Search // how generic is searched; nil without it
	extend  bool          // propagate_unmatched_extensions has generic
	form    addrform.Form // of what the table gives
	warn    func(text string)

	// The checks of the message's header, of MIME fields, of attached messages' headers,
	// and of body lines. Each may be empty.
	header, mime, nested, body *table.Maps

	noConversion bool // disable_mime_output_conversion
	maxDepth     int  // of nested parts; deeper ones are body
	maxBoundary  int  // octets of a boundary that count
	maxField     int  // header_size_limit: octets of a field that are kept
	maxBodyLine  int  // body_checks_size_limit: octets of a line that are checked
}

// newOutputRules reads them and opens the tables. An error names what is wrong.
func newOutputRules(cfg *config.Config, lmtp bool, o table.Options) (*outputRules, error) {
	own := ownParameters(cfg, lmtp)
	r := &outputRules{
		generic:      openMaps(own, "generic_maps", o),
		header:       openMaps(own, "header_checks", o),
		mime:         openMaps(own, "mime_header_checks", o),
		nested:       openMaps(own, "nested_header_checks", o),
		body:         openMaps(own, "body_checks", o),
		noConversion: cfg.Bool("disable_mime_output_conversion"),
		maxDepth:     cfg.Int("mime_nesting_limit"),
		maxBoundary:  cfg.Int("mime_boundary_length_limit"),
		maxField:     int(cfg.Bytes("header_size_limit")),
		maxBodyLine:  int(cfg.Bytes("body_checks_size_limit")),
		form:         addrform.New(cfg),
		warn:         o.Warn,
	}
	for _, e := range cfg.List("propagate_unmatched_extensions") {
		r.extend = r.extend || e == "generic"
	}
	if r.generic.Empty() {
		return r, nil
	}
	var err error
	r.search, err = newSearch(cfg, o)
	return r, err
}

// newSearch says how addresses are taken apart for tables that have them:
// delimiters, and which domains are local.
func newSearch(cfg *config.Config, o table.Options) (*table.Search, error) {
	local, err := table.OpenLocal(context.Background(), cfg, o)
	if err != nil {
		return nil, err
	}
	return &table.Search{Delimiters: cfg.String("recipient_delimiter"), OwnerRequest: cfg.Bool("owner_request_special"),
		DoubleBounce: cfg.String("double_bounce_sender"), Local: local.IsLocal}, nil
}

// mapAddress maps an address by smtp_generic_maps, once: the result is not looked
// up again. The null sender stays. On an error the message is deferred, so that no
// internal address gets out.
func (r *outputRules) mapAddress(ctx context.Context, addr string) (string, error) {
	if r.generic.Empty() || addr == "" {
		return addr, nil
	}
	// An extension that the table's key does not have is kept if
	// propagate_unmatched_extensions says so: joe+list becomes joe@example.com with
	// the +list.
	list, found, err := r.generic.MapAddress(ctx, r.search, addr, r.extend, r.form.Rewrite)
	if err != nil || !found {
		return addr, err
	}
	// Only the first counts: a message must not go to people to whom nobody has
	// sent it.
	if len(list) > 1 {
		r.warn("multi-valued " + r.generic.Title() + " result for " + rfc5322.Quote(addr))
	}
	if !validPath(list[0]) {
		return addr, fmt.Errorf("%s: %s maps to %q, which is not an address", r.generic.Title(), rfc5322.Quote(addr), list[0])
	}
	return list[0], nil
}

// touches says whether a message has to be looked at on its way to a server. If
// not, it goes from the queue to the socket as it is.
func (r *outputRules) touches(body mail.Body, s *session) bool {
	return r.downgrades(body, s) || !r.generic.Empty() || !r.header.Empty() || !r.mime.Empty() || !r.nested.Empty() || !r.body.Empty()
}

// downgrades says whether eight-bit parts are to be encoded, RFC 6152 section 3:
// the server does not accept them.
func (r *outputRules) downgrades(body mail.Body, s *session) bool {
	return body&mail.Body8Bit != 0 && s.offers&offers8BitMIME == 0 && !r.noConversion
}

// converter looks at a message line by line and passes on what is to be sent.
// It is for one transmission, and belongs to its goroutine.
type converter struct {
	ctx   context.Context // bounds what patterns may cost
	d     *delivery
	rules *outputRules
	out   *filter
	down  *rfc5322.Downgrader // before all else, for a server that does not take eight bits
	coded []byte              // what it made of the last piece
	mime  rfc5322.Structure
	where place
	field []byte // of the present header, lines so far; empty between fields
	err   error  // of a table, as errLocalData: nothing more is passed on

	pieces rfc5322.Lines // makes lines of pieces
}

// place is where in a message the converter is.
type place uint8

const (
	inPrimary place = iota // the message's own header
	inPart                 // header of a part
	inNested               // header of an attached message
	inBody                 // of the message or a part
)

// newConverter makes a converter for one message. ctx bounds what patterns may
// cost, over all lines.
func (r *outputRules) newConverter(ctx context.Context, d *delivery, s *session, out *filter) *converter {
	c := &converter{ctx: ctx, d: d, rules: r, out: out, mime: rfc5322.Structure{MaxDepth: r.maxDepth, MaxBoundary: r.maxBoundary}}
	if r.downgrades(d.env.Body, s) {
		c.down = &rfc5322.Downgrader{Structure: c.mime}
	}
	return c
}

// write takes content in pieces, wherever they are cut.
func (c *converter) write(b []byte) {
	if c.down != nil {
		c.coded = c.down.Append(reuse.Truncated(c.coded), b)
		b = c.coded
	}
	c.lines(b)
}

// lines takes the content's lines out of pieces of it, until something fails.
func (c *converter) lines(b []byte) {
	var line []byte
	for len(b) > 0 && c.err == nil && c.out.err == nil {
		if line, b = c.pieces.Next(b); line != nil {
			c.addLine(line)
		}
	}
}

// end passes on what is left: a field or a line without an end.
func (c *converter) end() {
	if c.down != nil {
		c.lines(c.down.AppendEnd(nil))
	}
	if line := c.pieces.Last(); line != nil {
		c.addLine(line)
	}
	// A message that ends within its header: the last field has not been looked at
	// yet.
	if c.where != inBody {
		c.endField()
	}
}

// addLine looks at one line, which has its end, or is the last. A field is complete
// only with the line after it.
func (c *converter) addLine(line []byte) {
	text := bytes.TrimRight(line, "\r\n")
	if c.where == inBody {
		c.bodyLine(line, text)
		return
	}
	if len(c.field) > 0 && len(text) > 0 && (line[0] == ' ' || line[0] == '\t') {
		// What is over header_size_limit is left out, as cleanup does.
		if len(c.field) < c.rules.maxField {
			c.field = append(c.field, line...)
		}
		return
	}
	c.endField()
	// The line begins a field. It waits for its continuation lines.
	if _, ok := rfc5322.ParseField(line); ok {
		c.field = append(reuse.Truncated(c.field), line...)
		return
	}
	// The empty line, or a body that begins without one.
	if c.where = inBody; c.mime.EndOfHeader() {
		c.where = inNested
	}
	// A header that ends without an empty line gets one: for the next host what follows would be a
	// field.
	if len(text) > 0 {
		c.out.write(crlf)
		c.addLine(line)
		return
	}
	c.out.write(line)
}

var crlf = []byte("\r\n")

// endField looks at the field that has been gathered, if there is one.
func (c *converter) endField() {
	if len(c.field) == 0 {
		return
	}
	c.wholeField(c.field)
	c.field = reuse.Truncated(c.field)
}

// wholeField checks a field, and writes it or what takes its place. It does not keep raw.
func (c *converter) wholeField(raw []byte) {
	f, ok := rfc5322.ParseField(raw)
	if !ok {
		c.out.write(raw)
		return
	}
	// The structure has to know of Content-Type even where no check applies to it:
	// it says where parts begin.
	c.mime.Field(f)
	name := strings.ToLower(string(f.Name()))
	checks := c.rules.header
	switch {
	case mimeFields[name], c.where == inPart:
		checks = c.rules.mime
	case c.where == inNested:
		checks = c.rules.nested
	}
	if !c.check(checks, "header", f.Lines(), &raw) {
		return
	}
	// What REPLACE has made of it may be several fields, or none.
	if f, ok = rfc5322.ParseField(raw); !ok {
		c.out.write(raw)
		return
	}
	if c.where == inPrimary && addressFields[name] && !c.rules.generic.Empty() {
		c.mapField(f)
		return
	}
	c.out.write(raw)
}

// mimeFields are the fields that smtp_mime_header_checks apply to wherever they
// stand; in the header of a part all fields are theirs.
var mimeFields = map[string]bool{
	"content-description": true, "content-disposition": true, "content-id": true,
	"content-transfer-encoding": true, "content-type": true, "mime-version": true,
}

// addressFields are the fields whose addresses smtp_generic_maps apply to.
var addressFields = map[string]bool{
	"from": true, "sender": true, "reply-to": true, "to": true, "cc": true, "bcc": true, "errors-to": true,
	"return-path": true, "return-receipt-to": true, "disposition-notification-to": true, "mail-followup-to": true,
	"apparently-to": true, "resent-from": true, "resent-sender": true, "resent-reply-to": true,
	"resent-to": true, "resent-cc": true, "resent-bcc": true,
}

// mapField maps the addresses of a field, and writes it. Comments and names stay.
func (c *converter) mapField(f rfc5322.Field) {
	text := string(f.Body())
	// Comments and display names are not touched, and neither is an address that
	// maps to itself.
	list := rfc5322.AppendAddresses(nil, text, 0)
	changed := false
	for i := range list {
		to, err := c.rules.mapAddress(c.ctx, list[i].Addr)
		if err != nil {
			c.err = fmt.Errorf("%w: %w", errLocalData, err)
			return
		}
		if to != list[i].Addr {
			list[i].Addr, list[i].Changed, changed = to, true, true
		}
	}
	// Untouched fields go out octet for octet: signatures cover them.
	if !changed {
		c.out.write(f.Raw)
		return
	}
	c.out.write(rfc5322.AppendRewritten(nil, string(f.Name()), text, list))
}

// bodyLine passes on a line of a body, or begins the header of a part. Boundaries
// are not checked.
func (c *converter) bodyLine(line, text []byte) {
	if found, header := c.mime.Boundary(text); found {
		if header {
			c.where = inPart
		}
		c.out.write(line)
		return
	}
	if !c.rules.body.Empty() {
		kept := line
		if !c.check(c.rules.body, "body", text[:min(len(text), c.rules.maxBodyLine)], &kept) {
			return
		}
		line = kept
	}
	c.out.write(line)
}

// check asks a table about a field or a line. It returns false if it is to be
// left out; raw is what is sent in its place. Actions that would decide the
// message's fate have no place here, where it is being sent already.
func (c *converter) check(checks *table.Maps, what string, text []byte, raw *[]byte) bool {
	if checks.Empty() || len(text) == 0 {
		return true
	}
	value, found, err := checks.Lookup(c.ctx, string(text), false)
	if err != nil {
		c.err = fmt.Errorf("%w: %w", errLocalData, err)
		return false
	}
	if !found {
		return true
	}
	// The actions of header_checks(5) as far as they apply to a message that is
	// being sent: REJECT, HOLD and the like come too late, and are warned of.
	action, arg, _ := strings.Cut(strings.TrimSpace(value), " ")
	arg = strings.TrimSpace(arg)
	logCheck := func(word string) {
		c.d.log.Log(maillog.SMTPCheck{ID: c.d.id, Action: word, Part: what, Line: printable(text[:min(len(text), 60)]), Text: printable([]byte(arg))})
	}
	switch strings.ToUpper(action) {
	case "DUNNO", "OK":
	case "IGNORE": // STRIP without a line in the log
		return false
	case "STRIP":
		logCheck("strip")
		return false
	case "INFO":
		logCheck("info")
	case "WARN":
		logCheck("warning")
	case "REPLACE":
		if what == "header" && !rfc5322.IsField(arg) {
			c.d.log.Warning("%s: REPLACE needs a header field, not %q", checks.Title(), arg)
			return true
		}
		logCheck("replace")
		*raw = appendLines(nil, arg)
	case "PREPEND":
		if what == "header" && !rfc5322.IsField(arg) {
			c.d.log.Warning("%s: PREPEND needs a header field, not %q", checks.Title(), arg)
			return true
		}
		logCheck("prepend")
		c.out.write(appendLines(nil, arg))
	default:
		c.d.log.Warning("unsupported command in %s map: %s", checks.Title(), value)
	}
	return true
}

// appendLines appends text as CRLF lines: a table may hold several lines, separated
// by LF.
func appendLines(b []byte, text string) []byte {
	for l := range strings.SplitSeq(text, "\n") {
		b = append(append(b, strings.TrimRight(l, "\r")...), "\r\n"...)
	}
	return b
}
