package console

import (
	"errors"
	"fmt"
	"strings"
)

// A role is what somebody may do. Operate includes look. To read what messages say is a right of its own, which neither
// includes: see person.
type role uint8

const (
	nobody  role = iota // has not logged in
	look                // pages, and everything that changes nothing
	operate             // suspend, hold, delete ...
	read                // the content of messages: what an operation asks for, and nobody's whole role
)

func (r role) String() string { return [...]string{"nobody", "look", "operate", "read"}[r] }

// A person is who has logged in, or a program with a token.
type person struct {
	user string // as it is logged: one word
	role role   // nobody, look or operate
	// reads says that the person may read the content of messages, too. It implies look.
	reads bool
	// provider says that an OpenID provider has vouched for the person.
	provider bool
}

// may says whether a person may do what needs a role.
func (p *person) may(need role) bool {
	if need == read {
		return p.reads
	}
	return p.role >= need
}

// rights are what a person may do, in words, as console_role_maps has them.
func (p *person) rights() string {
	if p.reads {
		return p.role.String() + " " + read.String()
	}
	return p.role.String()
}

// grant adds the rights that a value of console_role_maps has: words with white space or commas between them.
func (p *person) grant(words string) error {
	for _, word := range strings.FieldsFunc(words, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' }) {
		switch word {
		case look.String():
			p.role = max(p.role, look)
		case operate.String():
			p.role = operate
		case read.String():
			p.role, p.reads = max(p.role, look), true
		default:
			return fmt.Errorf("console_role_maps: %s: %q is no role; the roles are look, operate and read", p.user, word)
		}
	}
	return nil
}

var (
	errSession = errors.New("log in first")
	errRole    = errors.New("you may look, but not change anything: see console_operators and console_role_maps")
	errReading = errors.New("you may not read what messages say: see console_role_maps")
)

// refused says why a person may not do what needs a role; nil: it is permitted.
func (p *person) refused(need role) error {
	switch {
	case p.may(need):
		return nil
	case p.role == nobody:
		return errSession
	case need == read:
		return errReading
	}
	return errRole
}
