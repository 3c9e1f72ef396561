package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/storage"
)

const (
	// maxReaders bounds how many messages are sent to browsers at a time.
	maxReaders = 4
	// maxShown bounds the octets of a header.
	maxShown = 256 << 10
)

var (
	// errElsewhere says why there is no content to read.
	errElsewhere = errors.New("the content of messages is where the console cannot read it: use postcat")
	errReaders   = errors.New("too many messages are being read: try again in a moment")
)

// contents reads what messages say. Its methods may be called concurrently.
type contents struct {
	opener queueread.Opener
	broken error // why the queue cannot be read; nil: it can
	busy   chan struct{}
}

// openContents opens the queue for reading, with the rights that the service begins with. What is wrong with it is said to who
// wants to read.
func openContents(env *service.Env) *contents {
	c := &contents{busy: make(chan struct{}, maxReaders)}
	c.opener.Cleanup = ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	if storage.Elsewhere(env.Config) && env.Storage == nil {
		c.broken = errElsewhere
		return c
	}
	if c.opener.Reader, c.broken = queueread.NewReader(env.Files(), env.Config, env.Storage); c.broken != nil {
		env.Log.Warning("console: the content of messages cannot be read: %v", c.broken)
	}
	return c
}

func (c *contents) close() {
	c.opener.Cleanup.Close()
	if c.opener.Reader != nil {
		c.opener.Reader.Close()
	}
}

// open opens a message's content, with the line ends of SMTP. Closing it makes room for another reader. Errors to tell apart:
// errNoMessage, errReaders.
func (c *contents) open(ctx context.Context, id mail.QueueID) (io.ReadCloser, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	select {
	case c.busy <- struct{}{}:
	default:
		return nil, errReaders
	}
	content, err := c.opener.Content(ctx, queue.Ref{}, id)
	if err != nil {
		<-c.busy
		if errors.Is(err, queueread.ErrGone) {
			err = errNoMessage
		}
		return nil, err
	}
	return &reading{content, c}, nil
}

// A reading is the content of a message that somebody reads.
type reading struct {
	io.ReadCloser
	of *contents
}

func (r *reading) Close() error {
	defer func() { <-r.of.busy }()
	return r.ReadCloser.Close()
}

// Content is what a message says, or its header. The caller must close it.
type Content struct {
	id     string
	header bool
	body   io.ReadCloser
}

// opContent lets somebody read a message. That, and why, is in the log before.
func (c *console) opContent(q *query) (any, error) {
	id, err := q.queueID()
	if err != nil {
		return nil, err
	}
	part := q.get("part")
	reason := strings.TrimSpace(q.get("reason"))
	switch {
	case part != "" && part != "all" && part != "header":
		return nil, wrong("part is header or all")
	case reason == "":
		return nil, wrong("say why you read it: it is logged")
	}
	if err := validReason(reason); err != nil {
		return nil, err
	}
	out := &Content{id: string(id), header: part == "header"}
	act := "read"
	if out.header {
		act = "read-header"
	}
	err = c.audited(q, act, string(id), reason, func() (err error) {
		out.body, err = c.contents.open(q.ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// head is the header, up to maxShown octets.
func (m *Content) head() (text string, err error) {
	var b strings.Builder
	in := bufio.NewReader(io.LimitReader(m.body, maxShown))
	for {
		line, err := in.ReadString('\n')
		if trimmed := strings.TrimRight(line, "\r\n"); trimmed == "" && line != "" {
			return b.String(), nil
		}
		b.WriteString(line)
		switch {
		case errors.Is(err, io.EOF):
			return b.String(), nil
		case err != nil:
			return b.String(), err
		}
	}
}

// send sends the content as a file that a browser does not show. A reader who does not read is given up; then, and when the
// content turns out to be damaged, the connection breaks, so that what has arrived is not taken for the whole.
func (m *Content) send(w http.ResponseWriter) {
	defer m.body.Close()
	if m.header {
		text, err := m.head()
		if err != nil {
			http.Error(w, "the message is damaged: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text) // who has gone does not read it
		return
	}
	h := w.Header()
	h.Set("Content-Type", "message/rfc822")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s.eml"`, m.id)) // an ID has letters and digits alone
	h.Set("Content-Security-Policy", policy+"; sandbox")
	out, b := http.NewResponseController(w), make([]byte, 64<<10)
	for {
		n, err := m.body.Read(b)
		if n > 0 {
			if out.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
				panic(http.ErrAbortHandler)
			}
			if _, werr := w.Write(b[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// A headerBody is the page with a message's header.
type headerBody struct {
	ID    string
	Lines []string
}

// serveContent answers the form of a page: with the message as a file, or with a page that shows its header.
func (c *console) serveContent(w http.ResponseWriter, p *page, m *Content) {
	if !m.header {
		m.send(w)
		return
	}
	defer m.body.Close()
	text, err := m.head()
	p.Title = "Header of " + m.id
	if err != nil {
		p.Failure = "The message is damaged: " + err.Error()
	}
	lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], "\r")
	}
	p.Body = headerBody{m.id, lines}
	c.render(w, http.StatusOK, "header", p)
}
