package ipc

import (
	"context"
	"net"
)

// An Address is where a service is reached. String names it in errors. Its methods may be
// called concurrently.
type Address interface {
	Dial(ctx context.Context) (net.Conn, error)
	String() string
}

// Unix is the Address of a unix-domain socket: its path.
type Unix string

// Dial connects to the socket.
func (path Unix) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", string(path))
}

func (path Unix) String() string { return string(path) }

// Func is the Address of what is reached by a function. Its name stands for it in errors.
func Func(name string, dial func(context.Context) (net.Conn, error)) Address {
	return dialed{name, dial}
}

type dialed struct {
	name string
	dial func(context.Context) (net.Conn, error)
}

func (d dialed) Dial(ctx context.Context) (net.Conn, error) { return d.dial(ctx) }

func (d dialed) String() string { return d.name }
