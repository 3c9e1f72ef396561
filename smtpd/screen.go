// The session's end of package postscreen: it lends its socket to the tests before
// the greeting, and shows the tests after it each command.

package smtpd

import (
	"context"
	"strings"
	"time"

	"posthaste/smtpd/postscreen"
)

// screen has the client go through postscreen's tests. An error ends the
// session, which has been told why, unless it has gone away itself.
func (s *session) screen(ctx context.Context) error {
	early, refusal, err := s.screened.Connect(ctx, s.srv.screen, &s.a.Client, s.listen)
	s.a.Pipelined = early // postscreen has judged it
	switch {
	case refusal != nil:
		s.reply(refusal)
		return errRefused
	case err != nil: // the client has gone, and postscreen's line on that is all there is to say
		s.ended, s.quiet = true, true
	}
	return err
}

// listen is postscreen.Listen: it sends text, if any, and waits for the client to
// speak, or for wait to pass, which is a timeout as err. data stays in the buffer;
// it is what the client said too early.
func (s *session) listen(text string, wait time.Duration) (data string, err error) {
	w := &s.wire
	w.out = append(w.out, text...)
	own := w.timeout
	w.timeout = wait
	w.makeRoom(smallBuf)
	if w.buffered() == 0 {
		err = w.fill(nil)
	}
	w.timeout = own
	return string(w.unread()), err
}

// screenCommand has postscreen's tests look at a command. It says whether the
// session is over.
func (s *session) screenCommand(v verb, bareLF bool) (over bool) {
	cmd := postscreen.Command{Line: s.cmd.Line, Name: strings.ToUpper(commands[v].name), Word: s.cmd.Word(), After: s.a.Stage,
		Unknown: v == vUnknown, BareLF: bareLF}
	// What is behind a command of a pipelined group may be there; behind its last one, and
	// behind every command of a client that has not said EHLO, it may not (RFC 2920 section 3.1).
	if s.screened.Pipelines() && (s.a.Proto != "ESMTP" || commands[v].traits&tLast != 0) {
		cmd.Unread = string(s.wire.unread())
	}
	early, refusal := s.screened.Command(s.ctx(), &cmd)
	s.a.Pipelined = s.a.Pipelined || early
	if refusal != nil {
		s.reply(refusal)
	}
	return refusal != nil
}
