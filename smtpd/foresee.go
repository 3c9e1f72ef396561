package smtpd

import "bytes"

// A client that pipelines sends its recipients by the packet. Asked for one after
// the other, each would cost the way to trivial-rewrite and back, and two processes
// a wake-up; so the questions about those that have been received and wait for
// their turn go out together with the first one's. Only commands that plainly
// contain one address are looked at. If that is a mistake, a question was asked in
// vain; the command is judged in its turn as always.

// maxForeseen bounds the recipients that are asked about before their turn, and
// with them what a client can have asked in vain.
const maxForeseen = 32

// foresee has the addresses of the RCPT commands that have been received asked
// for. sender is that of the transaction.
func (s *session) foresee(sender string) {
	w := &s.wire
	if s.srv.foresee == nil || w.buffered() == 0 || w.position() < s.foreseen {
		return
	}
	rest := w.buf[w.r:w.w]
	for range maxForeseen {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		addr, ok := plainRcpt(line)
		if !whole || !ok {
			break
		}
		rest = after
		s.srv.foresee(s.srv.ctx(), sender, string(addr))
	}
	s.foreseen = w.received - int64(len(rest))
}

// plainRcpt returns the address of a RCPT command, when that is a mailbox without
// quotes or source route, which is its own internal form. Anything else is left to the
// parser: this must not have an opinion of its own about syntax.
func plainRcpt(line []byte) (addr []byte, ok bool) {
	const rcpt = "RCPT TO:<"
	if len(line) < len(rcpt) || !bytes.EqualFold(line[:len(rcpt)], []byte(rcpt)) {
		return nil, false
	}
	addr, _, ok = bytes.Cut(line[len(rcpt):], []byte(">"))
	return addr, ok && len(addr) > 0 && addr[0] != '@' && !bytes.ContainsAny(addr, "\"\\ \t")
}
