package smtpwire

import (
	"strings"

	"posthaste/internal/dsn"
)

// A Command is a line from a client, taken apart as far as the verb.
type Command struct {
	Verb string // in upper case
	Args string // what follows, without white space at either end
	Line string // all of it, for logs; white space at the end cut
}

// ParseCommand takes a command line apart. line has no line end; white space
// before the verb and at the end does not matter. The verb of an empty line
// is empty.
func ParseCommand(line string) Command {
	line = strings.TrimRight(line, blanks+"\r\n")
	text := strings.TrimLeft(line, blanks)
	i := strings.IndexAny(text, blanks)
	if i < 0 {
		return Command{Verb: upper(text), Line: line}
	}
	return Command{Verb: upper(text[:i]), Args: strings.TrimLeft(text[i:], blanks), Line: line}
}

// blanks are what stands between words.
const blanks = " \t\v\f"

// Word is the verb as the client wrote it.
func (c *Command) Word() string { return strings.TrimLeft(c.Line, blanks)[:len(c.Verb)] }

// upper is strings.ToUpper for verbs, which are ASCII or nonsense. Verbs
// come in upper case nearly always: no copy then.
func upper(s string) string {
	for i := 0; i < len(s); i++ {
		if c := s[i]; 'a' <= c && c <= 'z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if 'a' <= b[i] && b[i] <= 'z' {
					b[i] -= 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// LooksLikeHeader says whether a command line is rather the line of a message
// header: a field name and a colon. A client that sends one talks to us about
// things that it got from elsewhere (a web form, for one).
func LooksLikeHeader(line string) bool {
	i := 0
	for i < len(line) && line[i] > ' ' && line[i] < 127 && line[i] != ':' {
		i++
	}
	return i > 0 && i < len(line) && line[i] == ':'
}

// Ext is a set of extensions that bring MAIL or RCPT parameters.
type Ext uint16

const (
	ExtDSN        Ext = 1 << iota // RET, ENVID, NOTIFY, ORCPT (RFC 3461)
	ExtSMTPUTF8                   // SMTPUTF8 (RFC 6531)
	ExtVERP                       // XVERP
	ExtRequireTLS                 // REQUIRETLS (RFC 8689)
)

// Body is the value of a BODY parameter, RFC 6152.
type Body uint8

const (
	BodyUnset Body = iota
	Body7Bit
	Body8BitMIME
)

// Mail is a MAIL command.
type Mail struct {
	From     Path
	Size     int64 // RFC 1870; 0: not given
	Body     Body
	Auth     string // RFC 4954 section 5, in xtext as it came; "<>" when the client vouches for nobody
	Ret      dsn.Ret
	EnvID    string // decoded
	SMTPUTF8 bool
	VERP     string // two delimiters, or "default" for XVERP without a value
	// RequireTLS asks that the message goes on over verified TLS only.
	RequireTLS bool
}

// Rcpt is a RCPT command.
type Rcpt struct {
	To     Path
	Notify dsn.Notify
	ORCPT  string // type;address, the address decoded
}

var (
	syntaxMail = R(501, dsn.S(5, 5, 4), "Syntax: MAIL FROM:<address>")
	syntaxRcpt = R(501, dsn.S(5, 5, 4), "Syntax: RCPT TO:<address>")
	badSender  = R(501, dsn.S(5, 1, 7), "Bad sender address syntax")
	badRcpt    = R(501, dsn.S(5, 1, 3), "Bad recipient address syntax")
	badSize    = R(501, dsn.S(5, 5, 4), "Bad message size syntax")
	hugeSize   = R(552, dsn.S(5, 3, 4), "Message size exceeds file system imposed limit")
	badRet     = R(501, dsn.S(5, 5, 4), "Bad RET parameter syntax")
	badEnvID   = R(501, dsn.S(5, 5, 4), "Bad ENVID parameter syntax")
	badAuth    = R(501, dsn.S(5, 5, 4), "Bad AUTH parameter syntax")
	badNotify  = R(501, dsn.S(5, 5, 4), "Error: Bad NOTIFY parameter syntax")
	badORCPT   = R(501, dsn.S(5, 5, 4), "Error: Bad ORCPT parameter syntax")
)

// IsAddressError says whether a refusal of ParseMail or ParseRcpt is about
// the address and not about the rest: those are logged with the address.
func IsAddressError(r *Reply) bool { return r == badSender || r == badRcpt }

// ParseMail reads the arguments of MAIL, RFC 5321 section 4.1.1.2. strict
// insists on angle brackets. The reply is nil when all is well.
func ParseMail(args string, ext Ext, strict bool) (m Mail, refusal *Reply) {
	rest, ok := cutPrefixFold(args, "FROM:")
	if !ok {
		return m, syntaxMail
	}
	from, params, found, ok := readPath(rest, strict)
	switch {
	case !found:
		return m, syntaxMail
	case !ok:
		return m, badSender
	}
	m.From = from
	var seen seenParams
	for word := range fields(params) {
		if refusal = m.param(word, ext, &seen); refusal != nil {
			return m, refusal
		}
	}
	return m, nil
}

// seenParams tells a parameter that is given twice. Those for which Postfix
// takes the last one are not in it.
type seenParams struct{ ret, envid, orcpt, notify bool }

func (m *Mail) param(word string, ext Ext, seen *seenParams) *Reply {
	name, value, has := strings.Cut(word, "=")
	switch upper(name) {
	case "SIZE":
		if has {
			return m.setSize(value)
		}
	case "BODY":
		switch upper(value) {
		case "7BIT":
			m.Body = Body7Bit
			return nil
		case "8BITMIME":
			m.Body = Body8BitMIME
			return nil
		}
	case "AUTH":
		if has {
			a, err := dsn.ParseXtext(value)
			if err != nil || a == "" || !printableUTF8(a) {
				return badAuth
			}
			m.Auth = value
			return nil
		}
	case "SMTPUTF8":
		if !has && ext&ExtSMTPUTF8 != 0 {
			m.SMTPUTF8 = true
			return nil
		}
	case "RET":
		if has && ext&ExtDSN != 0 {
			r, err := dsn.ParseRet(value)
			if err != nil || seen.ret {
				return badRet
			}
			m.Ret, seen.ret = r, true
			return nil
		}
	case "ENVID":
		if has && ext&ExtDSN != 0 {
			v, err := dsn.ParseXtext(value)
			// RFC 3461 section 4.4 allows 100 characters, and only printable ones.
			if err != nil || seen.envid || v == "" || len(value) > 100 || !printableUTF8(v) {
				return badEnvID
			}
			m.EnvID, seen.envid = v, true
			return nil
		}
	case "XVERP":
		if ext&ExtVERP != 0 && (!has || len(value) == 2) {
			m.VERP = value
			if !has {
				m.VERP = "default"
			}
			return nil
		}
	case "REQUIRETLS":
		if !has && ext&ExtRequireTLS != 0 {
			m.RequireTLS = true
			return nil
		}
	}
	return unsupported(word)
}

func (m *Mail) setSize(value string) *Reply {
	if value == "" {
		return badSize
	}
	var n int64
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c < '0' || c > '9' {
			return badSize
		}
		if n > (1<<63-1-9)/10 {
			return hugeSize
		}
		n = n*10 + int64(c-'0')
	}
	m.Size = n
	return nil
}

func unsupported(word string) *Reply {
	word = strings.Map(func(r rune) rune {
		if r < ' ' || r == 127 {
			return '?'
		}
		return r
	}, word)
	return R(555, dsn.S(5, 5, 4), "Unsupported option: "+word)
}

// ParseRcpt reads the arguments of RCPT, RFC 5321 section 4.1.1.3. The null
// address is refused; <postmaster> and other addresses without domain are
// for the caller to judge.
func ParseRcpt(args string, ext Ext, strict bool) (r Rcpt, refusal *Reply) {
	rest, ok := cutPrefixFold(args, "TO:")
	if !ok {
		return r, syntaxRcpt
	}
	to, params, found, ok := readPath(rest, strict)
	switch {
	case !found:
		return r, syntaxRcpt
	case !ok || to.Address == "":
		return r, badRcpt
	}
	r.To = to
	var seen seenParams
	for word := range fields(params) {
		if refusal = r.param(word, ext, &seen); refusal != nil {
			return r, refusal
		}
	}
	return r, nil
}

func (r *Rcpt) param(word string, ext Ext, seen *seenParams) *Reply {
	name, value, has := strings.Cut(word, "=")
	if !has || ext&ExtDSN == 0 {
		return unsupported(word)
	}
	switch upper(name) {
	case "NOTIFY":
		n, err := dsn.ParseNotify(value)
		if err != nil || seen.notify {
			return badNotify
		}
		r.Notify, seen.notify = n, true
		return nil
	case "ORCPT":
		o, ok := ParseORCPT(value)
		if !ok || seen.orcpt {
			return badORCPT
		}
		r.ORCPT, seen.orcpt = o, true
		return nil
	}
	return unsupported(word)
}

// ParseORCPT decodes the value of an ORCPT parameter, RFC 3461 section 4.2:
// an address type, a semicolon, and an address in xtext, which is decoded.
// The address of type utf-8 (RFC 6533 section 3) may also hold bytes over
// 127, and is kept as it is, its own escapes included.
func ParseORCPT(value string) (string, bool) {
	typ, addr, ok := strings.Cut(value, ";")
	if !ok || typ == "" || addr == "" || len(value) > 500 {
		return "", false
	}
	for i := 0; i < len(typ); i++ {
		if c := typ[i]; c <= ' ' || c >= 127 || strings.IndexByte(`()<>@,;:\"/[]?.=`, c) >= 0 {
			return "", false
		}
	}
	if strings.EqualFold(typ, "utf-8") && !isASCII(addr) {
		return value, printableUTF8(addr)
	}
	dec, err := dsn.ParseXtext(addr)
	if err != nil || !printableUTF8(dec) {
		return "", false
	}
	return typ + ";" + dec, true
}

// ParseBDAT reads the arguments of BDAT, RFC 3030 section 2. ok is false when
// they are malformed; then nothing is known of what follows on the wire.
func ParseBDAT(args string) (size int64, last, ok bool) {
	count, rest, _ := strings.Cut(args, " ")
	rest = strings.Trim(rest, " \t")
	if rest != "" {
		if !strings.EqualFold(rest, "LAST") {
			return 0, false, false
		}
		last = true
	}
	if count == "" || len(count) > 18 {
		return 0, false, false
	}
	for i := 0; i < len(count); i++ {
		if count[i] < '0' || count[i] > '9' {
			return 0, false, false
		}
		size = size*10 + int64(count[i]-'0')
	}
	return size, last, true
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return "", false
	}
	return s[len(prefix):], true
}

// fields yields the words of s.
func fields(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for {
			s = strings.TrimLeft(s, " \t")
			if s == "" {
				return
			}
			i := strings.IndexAny(s, " \t")
			if i < 0 {
				i = len(s)
			}
			if !yield(s[:i]) {
				return
			}
			s = s[i:]
		}
	}
}
