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
// (smtpd_proxy_options = speed_adjust).
type filtered struct {
	set   *filterSettings
	log   *maillog.Logger
	env   *mail.Envelope
	body8 bool
	utf8  bool
	buf   []byte
	file  *os.File
	err   error
}

func (m *filtered) Amend(env *mail.Envelope, _ submit.Options) { m.env = env }

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

func (m *filtered) Abort() {
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}

// Commit hands the message to the filter and returns its verdict.
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

// envelope tells the filter whose message it is; the first refusal is that of
// the message.
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
