package comeback

import (
	"bufio"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"regexp"
	"strings"
	"sync"
	"unicode"

	"posthaste/internal/rfc5322"
)

// Bounds of what is read of a message, whatever it says of itself.
const (
	maxMessage = 1 << 20   // octets; the machine-readable part comes before the message that is returned
	maxPart    = 256 << 10 // octets of a part
	maxParts   = 20
	maxNesting = 3
	maxBlocks  = 100 // recipients of a notification
	maxFields  = 100 // of a block
	maxPaths   = 8   // return paths that a report names
	maxText    = 500 // octets of what is kept of a text
)

// A kind is what a message is.
type kind uint8

const (
	other     kind = iota
	bounce         // RFC 3464
	told           // a bounce in words only
	complaint      // RFC 5965
)

// A report is what a message says. Its texts are a stranger's: one line each, of printable characters, bounded.
type report struct {
	kind   kind
	blocks []block // of a bounce, the recipients that it names
	// feedback is the type of a complaint, in lower case: abuse, fraud, not-spam ...
	feedback string
	// paths are addresses that may be the return path of the message that it is about, and names those that may be
	// its recipient.
	paths, names []string
	envID        string
	messageID    string // of the message that is returned; nothing proves it
	deliveredTo  []string
	auto         bool // a program has answered
}

// A block is what a notification says of a recipient.
type block struct {
	action string // in lower case: failed, delayed, ...
	status string // 5.1.1
	text   string // what a server has said, or the status
	final  string // addresses; original may be empty
	orig   string
}

// read reads a message. It cannot fail: what is not understood is other.
func read(r io.Reader) *report {
	rep := new(report)
	m, err := mail.ReadMessage(bufio.NewReader(io.LimitReader(r, maxMessage)))
	if err != nil {
		return rep
	}
	for _, v := range m.Header["Delivered-To"] {
		if len(rep.deliveredTo) < maxPaths*4 {
			rep.deliveredTo = append(rep.deliveredTo, address(v))
		}
	}
	rep.auto = autoReply(m.Header)
	rep.part(map[string][]string(m.Header), m.Body, 0)
	return rep
}

// autoReply says whether a program has answered a message: that the recipient is away, for instance. RFC 3834 has a field
// for it, and programs of before have others.
func autoReply(h mail.Header) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Auto-Submitted"))), "auto-replied") ||
		strings.EqualFold(strings.TrimSpace(h.Get("Precedence")), "auto_reply") || h.Get("X-Autoreply") != "" || h.Get("X-Autorespond") != ""
}

// part reads one part, and those that it contains.
func (rep *report) part(h map[string][]string, body io.Reader, depth int) {
	get := func(name string) string {
		if v := h[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	media, params, err := mime.ParseMediaType(get("Content-Type"))
	if err != nil {
		media = "text/plain"
	}
	switch encoding := strings.ToLower(strings.TrimSpace(get("Content-Transfer-Encoding"))); encoding {
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	}
	if strings.HasPrefix(media, "multipart/") {
		if depth < maxNesting && params["boundary"] != "" {
			rep.parts(multipart.NewReader(body, params["boundary"]), depth+1)
		}
		return
	}
	body = io.LimitReader(body, maxPart)
	switch media {
	case "message/delivery-status", "message/global-delivery-status":
		if rep.kind != bounce {
			rep.status(body)
		}
	case "message/feedback-report":
		if rep.kind != complaint {
			rep.feedbackReport(body)
		}
	case "message/rfc822", "message/global", "text/rfc822-headers", "message/rfc822-headers", "message/global-headers":
		rep.returned(body)
	case "text/plain", "text/html":
		// The words of an answer are a person's, in whatever part they stand.
		if rep.kind == other && !rep.auto {
			rep.words(body)
		}
	}
}

func (rep *report) parts(r *multipart.Reader, depth int) {
	for range maxParts {
		p, err := r.NextRawPart()
		if err != nil {
			return // the end, or it is cut off: what has been read counts
		}
		rep.part(p.Header, p, depth)
	}
}

// fields reads blocks of header fields, with blank lines between them. What is no field is left out. Of fields of one
// name the first counts.
func fields(r io.Reader) (list []map[string]string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<10)
	block, last := map[string]string{}, ""
	for lines.Scan() && len(list) < maxBlocks {
		line := strings.TrimRight(lines.Text(), "\r")
		if strings.TrimSpace(line) == "" {
			if len(block) > 0 {
				list = append(list, block)
			}
			block, last = map[string]string{}, ""
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			if last != "" && len(block[last]) < 4*maxText {
				block[last] += " " + strings.TrimSpace(line)
			}
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name = strings.ToLower(strings.TrimSpace(name))
		if _, again := block[name]; !ok || again || len(block) >= maxFields {
			last = ""
			continue
		}
		block[name], last = strings.TrimSpace(value), name
	}
	if len(block) > 0 && len(list) < maxBlocks {
		list = append(list, block)
	}
	return list
}

// status reads message/delivery-status: RFC 3464 section 2.1. Some leave the block of the message out, and some the
// blank line between it and the first recipient.
func (rep *report) status(r io.Reader) {
	for _, f := range fields(r) {
		if v := f["original-envelope-id"]; v != "" {
			rep.envID = clean(v)
		}
		if f["action"] == "" && f["final-recipient"] == "" {
			continue
		}
		b := block{action: strings.ToLower(clean(firstWord(f["action"]))), status: clean(firstWord(f["status"])), final: typed(f["final-recipient"]), orig: typed(f["original-recipient"])}
		if b.text = clean(value(f["diagnostic-code"])); b.text == "" {
			b.text = b.status
		}
		rep.blocks = append(rep.blocks, b)
		rep.name(b.orig)
		rep.name(b.final)
	}
	if len(rep.blocks) > 0 {
		rep.kind = bounce
	}
}

// feedbackReport reads message/feedback-report: RFC 5965 section 3.
func (rep *report) feedbackReport(r io.Reader) {
	list := fields(r)
	if len(list) == 0 || list[0]["feedback-type"] == "" {
		return
	}
	f := list[0]
	rep.kind, rep.feedback = complaint, strings.ToLower(clean(firstWord(f["feedback-type"])))
	if v := f["original-envelope-id"]; v != "" {
		rep.envID = clean(v)
	}
	rep.path(address(f["original-mail-from"]))
	rep.name(address(f["original-rcpt-to"]))
}

// returned reads the header of the message that is returned.
func (rep *report) returned(r io.Reader) {
	list := fields(r)
	if len(list) == 0 {
		return
	}
	f := list[0]
	if id := clean(firstWord(f["message-id"])); rep.messageID == "" && strings.HasPrefix(id, "<") && strings.HasSuffix(id, ">") {
		rep.messageID = id
	}
	rep.path(address(f["return-path"]))
	rep.name(address(f["delivered-to"]))
	rep.name(address(f["to"]))
}

// said finds a server's reply in a text: a code of failure with an enhanced one.
var said = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b5\d\d[ -]+#?5\.\d{1,3}\.\d{1,3}\b[^\r\n]*`) })

// words reads a text. Of a program that does not write reports the reply is all that can be relied on.
func (rep *report) words(r io.Reader) {
	text, _ := io.ReadAll(r) // what could be read of it
	reply := said().Find(text)
	if reply == nil {
		return
	}
	rep.kind = told
	line := clean(strings.ReplaceAll(string(reply), "#", ""))
	status := ""
	if f := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '-' }); len(f) > 1 {
		status = f[1]
	}
	rep.blocks = []block{{action: "failed", status: status, text: line}}
}

func (rep *report) path(addr string) {
	if addr != "" && len(rep.paths) < maxPaths {
		rep.paths = append(rep.paths, addr)
	}
}

func (rep *report) name(addr string) {
	if addr != "" && len(rep.names) < 2*maxBlocks {
		rep.names = append(rep.names, addr)
	}
}

// typed is the address of a field with its type, rfc822;joe@example.net.
func typed(v string) string { return address(value(v)) }

// value is a field's value without its type.
func value(v string) string {
	if kind, rest, ok := strings.Cut(v, ";"); ok && !strings.ContainsAny(strings.TrimSpace(kind), " @<") {
		return strings.TrimSpace(rest)
	}
	return v
}

// address is an address, with or without angle brackets, in internal form; empty if it is none.
func address(v string) string {
	v = strings.TrimSpace(v)
	if i, j := strings.LastIndexByte(v, '<'), strings.LastIndexByte(v, '>'); i >= 0 && i < j {
		v = v[i+1 : j]
	}
	addr, ok := rfc5322.Mailbox(v)
	if !ok || len(v) > maxText || strings.ContainsAny(v, "<>") {
		return ""
	}
	return addr
}

func firstWord(v string) string {
	if f := strings.Fields(v); len(f) > 0 {
		return f[0]
	}
	return ""
}

// clean is a text of a stranger as it may be logged and passed on.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r != ' ' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "?"))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}
