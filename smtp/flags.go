// flags= in master.cf: fields that are put before the message, and the loop check that
// comes with Delivered-To. LMTP uses them for mailboxes, as pipe does.

package smtp

import (
	"bytes"
	"fmt"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/rfc5322"
)

// options are the arguments of the service in master.cf.
type options struct {
	deliveredTo  bool // flags=D: Delivered-To, and refuse mail that has it already
	originalTo   bool // flags=O: X-Original-To
	returnPath   bool // flags=R: Return-Path
	finalService bool // flags=X: the next system is the last one
}

// parseArgs reads the arguments of master.cf. An error ends the process: a flag
// that is not known may be the one that keeps mail from looping.
func parseArgs(args []string) (o options, err error) {
	for _, a := range args {
		flags, ok := strings.CutPrefix(a, "flags=")
		if !ok {
			return o, fmt.Errorf("unknown argument %q in master.cf: expected flags= with letters of DORX", a)
		}
		for _, c := range flags {
			switch c {
			case 'D':
				o.deliveredTo = true
			case 'O':
				o.originalTo = true
			case 'R':
				o.returnPath = true
			case 'X':
				o.finalService = true
			default:
				return o, fmt.Errorf("unknown letter %q in flags= in master.cf: expected letters of DORX", c)
			}
		}
	}
	return o, nil
}

// prefix composes the header fields that the flags ask for, for the one recipient
// there is; nil without any. Return-Path has the sender as it came, before
// smtp_generic_maps.
func (t *transaction) prefix() []byte {
	o, d := &t.d.a.options, t.d
	if !o.returnPath && !o.originalTo && !o.deliveredTo {
		return nil
	}
	var b []byte
	field := func(name, before, addr, after string) {
		b = append(append(append(b, name...), ": "...), before...)
		b = append(append(rfc5322.AppendQuoted(b, addr), after...), "\r\n"...)
	}
	if o.returnPath {
		field("Return-Path", "<", d.env.Sender, ">")
	}
	rcpt := &d.env.Recipients[t.accepted[0]]
	if o.originalTo {
		field("X-Original-To", "", rcpt.Orig(), "")
	}
	if o.deliveredTo {
		field("Delivered-To", "", rcpt.Address, "")
	}
	return b
}

// checkFlags refuses what the flags rule out: several recipients where each is to
// be named in the header, and mail that has been here before, which its own
// Delivered-To field shows.
func (t *transaction) checkFlags() *failure {
	o, d := &t.d.a.options, t.d
	if (o.deliveredTo || o.originalTo) && len(d.env.Recipients) > 1 {
		d.log.Warning("%s: flags=D and flags=O need a destination_recipient_limit of 1 for this transport", d.id)
		return &failure{kind: messageFailed, status: dsn.S(4, 3, 5), text: "mail system configuration error"}
	}
	if !o.deliveredTo {
		return nil
	}
	// A large message is in a file. Fields of this kind are at its beginning.
	head := d.body.Bytes()
	if head == nil {
		head = make([]byte, chunk)
		n, _ := d.body.Reader().Read(head) // what cannot be read will be missed when it is sent
		head = head[:n]
	}
	// There is one recipient: flags=D needs a limit of 1.
	addr := d.env.Recipients[t.rcpts[0]].Address
	for {
		f, rest, ok := rfc5322.NextField(head)
		if !ok {
			return nil
		}
		if rfc5322.EqualName(f.Name(), "Delivered-To") && strings.EqualFold(rfc5322.Unquote(string(bytes.TrimSpace(f.Value()))), addr) {
			return &failure{kind: messageFailed, status: dsn.S(5, 4, 6), text: "mail forwarding loop for " + rfc5322.Quote(addr)}
		}
		head = rest
	}
}
