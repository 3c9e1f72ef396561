package inject

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"posthaste/internal/proto"
)

// A fault is why a request, a message or a recipient is refused. It is the client's to read, and has
// nothing in it that the client has not sent, but what cleanup says.
type fault struct {
	status int    // of HTTP
	field  string // which field of the request is meant: to[3].email; empty: none
	detail string
	retry  time.Duration  // after which time it may go better; 0: not said
	more   map[string]any // further members of the problem; nil: none
}

// Error implements error.
func (f *fault) Error() string {
	if f.field != "" {
		return f.field + ": " + f.detail
	}
	return f.detail
}

// refuse refuses what is understood, and cannot be done.
func refuse(format string, args ...any) *fault {
	return &fault{status: http.StatusUnprocessableEntity, detail: fmt.Sprintf(format, args...)}
}

// malformed refuses what cannot be read.
func malformed(format string, args ...any) *fault {
	return &fault{status: http.StatusBadRequest, detail: fmt.Sprintf(format, args...)}
}

// tooLarge refuses what exceeds a limit.
func tooLarge(format string, args ...any) *fault {
	return &fault{status: http.StatusRequestEntityTooLarge, detail: fmt.Sprintf(format, args...)}
}

// later asks the client to try again.
func later(after time.Duration, format string, args ...any) *fault {
	return &fault{status: http.StatusServiceUnavailable, detail: fmt.Sprintf(format, args...), retry: after}
}

// in says of which field an error is: of one below it, if it has a field already.
func in(field string, err error) error {
	var f *fault
	if !errors.As(err, &f) {
		return err
	}
	g := *f
	switch {
	case g.field == "":
		g.field = field
	case g.field[0] == '[':
		g.field = field + g.field
	default:
		g.field = field + "." + g.field
	}
	return &g
}

// at says of which element of a list an error is.
func at(i int, err error) error { return in("["+strconv.Itoa(i)+"]", err) }

// asFault is what a client is told of an error. What is no fault of its own is not told.
func asFault(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return later(retryTime, "the mail system cannot take mail now")
}

// retryTime is what clients are told to wait when it is not known how long it takes.
const retryTime = 30 * time.Second

// ofReply is why cleanup has not queued a message.
func ofReply(r *proto.SubmitReply) *fault {
	text := fmt.Sprintf("%s %s", r.Status, r.Text)
	switch {
	case r.Code/100 != 5:
		return later(retryTime, "%s", text)
	case r.Status.Subject == 3 && r.Status.Detail == 4:
		return tooLarge("%s", text)
	}
	return refuse("%s", text)
}
