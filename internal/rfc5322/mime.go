package rfc5322

import (
	"bytes"
	"strings"
)

// Structure follows the MIME structure of a message, line by line, as far as
// filters need it: where the headers of parts and of attached messages are. It
// is told of fields and lines and does not keep them. It looks at the structure
// as a reader of the mail might who makes the best of what is malformed.
//
// The zero Structure, with its limits set, stands at the primary header.
type Structure struct {
	MaxDepth    int // levels below the outermost but one of multiparts that are followed (mime_nesting_limit)
	MaxBoundary int // length of a boundary that is compared (mime_boundary_length_limit)

	stack    []boundary
	media    media
	encoding encoding
	tooDeep  bool
}

// boundary is what separates the parts of one multipart.
type boundary struct {
	text   string
	digest bool // parts are messages unless they say otherwise
}

type media uint8

const (
	mediaOther media = iota
	mediaMultipart
	mediaMessage         // message/rfc822, message/global: a header follows
	mediaMessageRaw      // message/partial, message/external-body
	mediaMessageOther    // message/ anything else
	mediaMessageRFC822   // message/rfc822, whose encoding must be an identity
	mediaMultipartDigest // multipart/digest
)

// encoding is a Content-Transfer-Encoding: the domain of the bytes, and whether
// they are as they are.
type encoding struct {
	name     string // in lower case; "" when none is known
	wide     bool   // 8bit or binary
	identity bool
}

// Field takes a field of the present header: Content-Type and
// Content-Transfer-Encoding matter, all others do not.
func (s *Structure) Field(f Field) {
	switch name := f.Name(); {
	case EqualName(name, "Content-Type"):
		s.contentType(mimeTokens(string(f.Body()), tspecials))
	case EqualName(name, "Content-Transfer-Encoding"):
		s.contentEncoding(mimeTokens(string(f.Body()), specials))
	}
}

// TooDeep says whether a multipart was not followed because of MaxDepth.
func (s *Structure) TooDeep() bool { return s.tooDeep }

// EndOfHeader ends a header and says whether what follows is a header too:
// that of an attached message.
func (s *Structure) EndOfHeader() (nested bool) {
	nested = s.media == mediaMessage || s.media == mediaMessageRFC822
	if nested || s.media == mediaMultipart || s.media == mediaMultipartDigest {
		s.media, s.encoding = mediaOther, encoding{}
	}
	return nested
}

// Multipart says whether we are in a multipart: whether a boundary may come.
func (s *Structure) Multipart() bool { return len(s.stack) > 0 }

// SevenBit says whether the present body is announced, or taken, to be 7bit.
func (s *Structure) SevenBit() bool {
	return s.encoding.name == "" || s.encoding.identity && !s.encoding.wide
}

// EncodingFault is the encoding that the present header gives a multipart or a
// message that must not have it, RFC 2045 section 6.4; "" when all is well. It
// is asked before EndOfHeader.
func (s *Structure) EncodingFault() string {
	switch e := s.encoding; {
	case s.media == mediaMessageRaw && e.wide:
		return e.name
	case s.media == mediaMessageRFC822, s.media == mediaMultipart, s.media == mediaMultipartDigest:
		if !e.identity {
			return e.name
		}
	}
	return ""
}

// Boundary looks at a line of a body, without its end. found says that it is a
// boundary of a multipart that we are in, header that the header of a
// part follows it.
func (s *Structure) Boundary(line []byte) (found, header bool) {
	if len(s.stack) == 0 || len(line) < 3 || line[0] != '-' || line[1] != '-' {
		return false, false
	}
	rest := line[2:]
	for i := len(s.stack) - 1; i >= 0; i-- {
		b := s.stack[i]
		if len(rest) < len(b.text) || string(rest[:len(b.text)]) != b.text {
			continue
		}
		s.media, s.encoding = mediaOther, encoding{}
		if bytes.HasPrefix(rest[len(b.text):], []byte("--")) {
			s.stack = s.stack[:i]
			return true, false
		}
		s.stack = s.stack[:i+1]
		if b.digest {
			s.media = mediaMessageRFC822
		}
		return true, true
	}
	return false, false
}

// contentType reads type, subtype and boundaries. More than one boundary is
// not allowed and may be meant to hide something: all of them count.
func (s *Structure) contentType(params [][]mimeToken) {
	if len(params) == 0 || len(params[0]) == 0 {
		s.media = mediaOther
		return
	}
	main, sub := params[0][0].word(), ""
	if t := params[0]; len(t) >= 3 && t[1].special == '/' {
		sub = t[2].word()
	}
	s.media = mediaOther
	switch {
	case strings.EqualFold(main, "message"):
		switch strings.ToLower(sub) {
		case "rfc822":
			s.media = mediaMessageRFC822
		case "global":
			s.media = mediaMessage
		case "partial", "external-body":
			s.media = mediaMessageRaw
		default:
			s.media = mediaMessageOther
		}
	case strings.EqualFold(main, "multipart"):
		s.media = mediaMultipart
		if strings.EqualFold(sub, "digest") {
			s.media = mediaMultipartDigest
		}
		for _, p := range params[1:] {
			if len(p) >= 3 && strings.EqualFold(p[0].word(), "boundary") && p[1].special == '=' {
				s.push(p[2].text)
			}
		}
	}
}

func (s *Structure) push(text string) {
	if len(s.stack) > s.MaxDepth+1 { // as Postfix counts: from zero, and one more
		s.tooDeep = true
		return
	}
	if s.MaxBoundary > 0 && len(text) > s.MaxBoundary {
		text = text[:s.MaxBoundary]
	}
	s.stack = append(s.stack, boundary{text, s.media == mediaMultipartDigest})
}

func (s *Structure) contentEncoding(params [][]mimeToken) {
	if len(params) == 0 || len(params[0]) == 0 {
		return
	}
	switch name := strings.ToLower(params[0][0].word()); name {
	case "7bit":
		s.encoding = encoding{name: name, identity: true}
	case "8bit", "binary":
		s.encoding = encoding{name: name, identity: true, wide: true}
	case "base64", "quoted-printable":
		s.encoding = encoding{name: name}
	}
}

// mimeToken is a token, a quoted string without its quotes, or a special. A
// parameter's value may be any of them; all names are tokens.
type mimeToken struct {
	text    string
	quoted  bool
	special byte
}

// word is the token, empty for the other kinds.
func (t mimeToken) word() string {
	if t.quoted || t.special != 0 {
		return ""
	}
	return t.text
}

// maxMIMETokens bounds how much of one field is looked at.
const maxMIMETokens = 1000

// What a token ends before: RFC 2045 section 5.1, and for an encoding, as
// elsewhere in a header, RFC 822.
const (
	tspecials = "()<>@,;:\\\"/[]?="
	specials  = "()<>@,;:\\\".[]"
)

// mimeTokens cuts the value of a MIME field into tokens, in groups as they
// stand between semicolons. Comments are left out.
func mimeTokens(text, specials string) [][]mimeToken {
	groups := [][]mimeToken{nil}
	add := func(t mimeToken) { groups[len(groups)-1] = append(groups[len(groups)-1], t) }
	n := 0
	for i := 0; i < len(text) && n < maxMIMETokens; n++ {
		c := text[i]
		start := i
		switch {
		case class[c]&space != 0:
			i++
			n--
		case c == '(':
			i = skipComment(text, i+1)
		case c == '"':
			i = skipDelimited(text, i+1, '"')
			s := trimDelimiters(text[start:i], '"')
			if strings.IndexByte(s, '\\') >= 0 {
				s = string(appendUnescaped(nil, s))
			}
			add(mimeToken{text: s, quoted: true})
		case c == ';':
			i++
			groups = append(groups, nil)
		case strings.IndexByte(specials, c) >= 0:
			i++
			add(mimeToken{text: text[start:i], special: c})
		default:
			for i < len(text) && class[text[i]]&space == 0 && strings.IndexByte(specials, text[i]) < 0 {
				i++
			}
			add(mimeToken{text: text[start:i]})
		}
	}
	return groups
}
