package inject

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// bodyGrace is how long a client may take before it has sent anything of a body, and minRate how
	// many octets a second it has to send after that.
	bodyGrace = 30 * time.Second
	minRate   = 1000
)

// A body is that of a request. A client that sends less than it has to loses its connection, however
// regularly it sends; one that waits for us is not counted against.
type body struct {
	r       io.Reader
	control *http.ResponseController
	now     func() time.Time
	octets  int64
	spent   time.Duration // in reads
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	begun := b.now()
	left := bodyGrace + time.Duration(b.octets)*time.Second/minRate - b.spent
	if left <= 0 {
		return 0, errSlow
	}
	// Deadlines of sockets are by the system's clock, whatever clock the service is given. A connection
	// that knows none has an end of its own.
	_ = b.control.SetReadDeadline(time.Now().Add(left))
	n, err := b.r.Read(p)
	b.octets += int64(n)
	b.spent += b.now().Sub(begun)
	switch {
	case err == io.EOF:
		_ = b.control.SetReadDeadline(time.Time{}) // the client waits for us now
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSlow
	case err != nil:
		err = malformed("the body ends too soon")
	}
	return n, err
}

// errSlow says that a client sends too slowly.
var errSlow = &fault{status: http.StatusRequestTimeout, detail: "the body came too slowly"}
