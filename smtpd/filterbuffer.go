// smtpd_proxy_options = speed_adjust: a message is received as a whole before the
// content filter hears of it, so that few filter processes serve many slow clients.

package smtpd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
	"posthaste/internal/submit"
)

// filtered is a message that the filter hears of when all of it is here
// (smtpd_proxy_options = speed_adjust). It implements message.
type filtered struct {
	set         *filterSettings
	log         *maillog.Logger
	env         *mail.Envelope // what the filter is going to hear
	body8, utf8 bool           // BODY=8BITMIME and SMTPUTF8 of MAIL
	buf         []byte         // the end of the content, at most bigBuf octets and one piece
	file        *os.File       // what came before it; nil: all is in buf
	err         error          // the first that went wrong: nothing is kept any more
}

// Amend implements message.
func (m *filtered) Amend(env *mail.Envelope, _ submit.Options) { m.env = env }

// Write implements message. Messages that fit into a buffer never touch the disk.
func (m *filtered) Write(p []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	if len(m.buf)+len(p) > bigBuf {
		m.err = m.spill()
	}
	m.buf = append(m.buf, p...)
	return len(p), m.err
}

// spill moves buf to the file. The file has no name: it is gone when it is closed,
// however the process ends.
func (m *filtered) spill() error {
	if m.file == nil {
		f, err := os.CreateTemp("", "posthaste-filter-")
		if err != nil {
			return err
		}
		os.Remove(f.Name())
		m.file = f
	}
	_, err := m.file.Write(m.buf)
	m.buf = reuse.Truncated(m.buf)
	return err
}

// Abort implements message. It may be called more than once.
func (m *filtered) Abort() {
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}

// Commit implements message: it hands the message to the filter and returns its
// verdict. The client waits for all of that, and for the filter's own timeouts.
func (m *filtered) Commit(ctx context.Context) (proto.SubmitReply, error) {
	defer m.Abort()
	src, err := m.content()
	if err != nil {
		r := filterFailed
		return proto.SubmitReply{Code: r.Code, Status: r.Status, Text: r.Text}, fmt.Errorf("keep message for the content filter: %w", err)
	}
	t, r := newFilterTalk(ctx, m.set, m.log)
	if r == nil {
		defer t.close()
		r = m.envelope(t)
	}
	if r != nil {
		return proto.SubmitReply{Code: r.Code, Status: r.Status, Text: r.Text}, nil
	}
	if _, err = io.Copy(t, src); t.failed {
		err = nil // which has been logged
	}
	if err != nil {
		t.Abort()
	}
	reply, _ := t.Commit(ctx)
	return reply, err
}

// content is the message from its beginning.
func (m *filtered) content() (io.Reader, error) {
	if m.err != nil || m.file == nil {
		return bytes.NewReader(m.buf), m.err
	}
	_, err := m.file.Seek(0, io.SeekStart)
	return io.MultiReader(m.file, bytes.NewReader(m.buf)), err
}

// envelope tells the filter whose message it is; the first refusal is that of the
// message, since the client has been told by now that its recipients are accepted.
func (m *filtered) envelope(t *filterTalk) *smtpwire.Reply {
	if r := t.mail(m.env, m.body8, m.utf8); r != nil {
		return r
	}
	for i := range m.env.Recipients {
		if r := t.rcpt(&m.env.Recipients[i]); r != nil {
			return r
		}
	}
	return t.data()
}
