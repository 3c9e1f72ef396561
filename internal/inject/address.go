package inject

import (
	"bytes"
	"mime"
	netmail "net/mail"
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"posthaste/internal/mail"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
)

// maxDisplay is how long the name of a person may be, in octets: a line of a header has to take it,
// encoded.
const maxDisplay = 150

// An Address is a mailbox: an address, and the name of whose it is. In JSON it is an object, or a text
// such as "Ann Example <ann@example.com>".
type Address struct {
	Email string // in internal form, with a domain in ASCII where the local part is
	Name  string
	UTF8  bool // the address is not ASCII
}

// parseAddress reads "ann@example.com" or "Ann Example <ann@example.com>".
func parseAddress(text string) (a Address, err error) {
	if !strings.ContainsAny(text, "<\"") {
		a.Email, a.UTF8, err = mailbox(text)
		return a, err
	}
	if hasLineControl(text) {
		return a, refuse("an address has no control characters")
	}
	if strings.HasSuffix(text, ">") { // the name may be anything, which RFC 5322 would have in quotes
		open := strings.LastIndexByte(text, '<')
		if open >= 0 && !strings.Contains(text[:open], `"`) {
			a.Name = strings.TrimSpace(text[:open])
			if strings.Contains(a.Name, "=?") {
				if a.Name, err = new(mime.WordDecoder).DecodeHeader(a.Name); err != nil {
					return a, refuse("the name is not encoded well")
				}
			}
			a.Email, a.UTF8, err = mailbox(text[open+1 : len(text)-1])
			return a, errorOr(err, a.checkName())
		}
	}
	p, perr := netmail.ParseAddress(text)
	if perr != nil {
		return a, refuse("it is no address, and no name with an address in angle brackets")
	}
	a.Name = p.Name
	a.Email, a.UTF8, err = mailbox(rfc5322.Quote(p.Address))
	return a, errorOr(err, a.checkName())
}

func errorOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// checkName says what is wrong with a name.
func (a *Address) checkName() error {
	switch {
	case hasLineControl(a.Name):
		return in("name", refuse("a name has no control characters"))
	case len(a.Name) > maxDisplay:
		return in("name", refuse("a name has at most %d octets", maxDisplay))
	}
	return nil
}

// mailbox reads an address as SMTP has it, local-part@domain. The result is in internal form.
func mailbox(text string) (email string, utf8 bool, err error) {
	if simpleMailbox(text) {
		return text, false, nil
	}
	ascii := smtpwire.IsASCII(text)
	if text == "" || len(text) > 320 || hasLineControl(text) {
		return "", false, refuse("it is no mail address")
	}
	ext := smtpwire.Ext(0)
	if !ascii {
		ext = smtpwire.ExtSMTPUTF8
	}
	r, refusal := smtpwire.ParseRcpt("TO:<"+text+">", ext, true)
	if refusal != nil || r.To.Raw != text || r.To.Address == "" {
		return "", false, refuse("it is no mail address")
	}
	local, domain, at := rfc5322.Split(r.To.Address)
	if !at || local == "" || domain == "" || hasLineControl(r.To.Address) {
		return "", false, refuse("it is no mail address with a local part and a domain")
	}
	if !smtpwire.IsASCII(domain) {
		to, ierr := idna.Lookup.ToASCII(domain)
		if ierr != nil {
			return "", false, refuse("its domain is no domain name")
		}
		domain = to
	}
	if domain[0] != '[' && !simpleMailbox("x@"+domain) || strings.ContainsFunc(local, unicode.IsControl) {
		return "", false, refuse("it is no mail address")
	}
	return local + "@" + domain, !smtpwire.IsASCII(local), nil
}

// simpleMailbox says whether a text is an address like nearly all: a dot-atom, "@", and a domain of
// letters, digits, hyphens and dots.
func simpleMailbox(s string) bool {
	at := strings.IndexByte(s, '@')
	if at < 1 || at > 64 || len(s)-at > 256 || at == len(s)-1 {
		return false
	}
	dot := true // the last one was a dot, or nothing
	for i := range len(s) {
		c := s[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '-':
			dot = false
		case c == '.' && !dot:
			dot = true
		case i == at && !dot:
			dot = true
		case i < at && strings.IndexByte("!#$%&'*+/=?^_`{|}~", c) >= 0, c == '_':
			dot = false
		default:
			return false
		}
	}
	return !dot
}

// append appends the mailbox as it stands in a header.
func (a *Address) append(b []byte) []byte {
	if a.Name == "" {
		return rfc5322.AppendQuoted(b, a.Email)
	}
	if smtpwire.IsASCII(a.Name) {
		b = rfc5322.AppendPhrase(b, a.Name)
	} else {
		b = append(b, mime.BEncoding.Encode("utf-8", a.Name)...)
	}
	b = append(b, " <"...)
	return append(rfc5322.AppendQuoted(b, a.Email), '>')
}

// appendMailboxes appends an address field.
func appendMailboxes(b []byte, name string, list []Address) []byte {
	items := make([]string, len(list))
	for i := range list {
		items[i] = string(list[i].append(nil))
	}
	return rfc5322.AppendList(b, name, items)
}

// recipient is the address as the envelope has it.
func (a *Address) recipient() mail.Recipient {
	kind := "rfc822;"
	if a.UTF8 {
		kind = "utf-8;"
	}
	return mail.Recipient{Address: a.Email, ORCPT: kind + rfc5322.Quote(a.Email)}
}

// fieldAddresses finds the addresses in the value of a field such as From.
func fieldAddresses(value []byte) []string {
	value = bytes.ReplaceAll(value, []byte("\r\n"), nil)
	var list []string
	for _, a := range rfc5322.AppendAddresses(nil, string(value), 0) {
		list = append(list, a.Addr)
	}
	return list
}
