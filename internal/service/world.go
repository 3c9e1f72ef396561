package service

import (
	"context"
	"net"

	"posthaste/internal/ipc"
	"posthaste/internal/ownsocket"
	"posthaste/internal/resolver"
	"posthaste/internal/vfs"
)

// A World is what a service finds around it that the operating system has otherwise: the
// sockets of other services, the disk that the queue is on, the network. There is one
// besides that of the system, which package simtest makes. Its methods may be called
// concurrently.
type World interface {
	// Dial connects to another service by the path of its socket, below the queue
	// directory: private/rewrite.
	Dial(ctx context.Context, path string) (net.Conn, error)
	// Own listens on a socket of the process's own, as package ownsocket does.
	Own(dir, name string) (net.Listener, error)
	// Files has the queue. Names are relative to the queue directory.
	Files() vfs.FS
	// Connect connects to a host of the network, as net.Dialer does.
	Connect(ctx context.Context, network, addr string) (net.Conn, error)
	// Names answers questions to the DNS.
	Names() resolver.Exchanger
	// Change is asked before a process renames, syncs or removes a file outside the queue: in a
	// mailbox, in the maildrop. op is one of these words. With an error nothing is done, and the
	// process gets it as if it were the system's.
	Change(op, path string) error
	// Accounts is the directory of passwd and group.
	Accounts() string
	// Random fills b with what is to differ from one process to the next: salts, seeds.
	Random(b []byte)
}

// Random is where salts and seeds come from; nil: from the operating system.
func (env *Env) Random() func(b []byte) {
	if env.world == nil {
		return nil
	}
	return env.world.Random
}

// at is the address of the socket at path.
func (env *Env) at(path string) ipc.Address {
	if env.world == nil {
		return ipc.Unix(path)
	}
	return ipc.Func(path, func(ctx context.Context) (net.Conn, error) { return env.world.Dial(ctx, path) })
}

// Own listens on a socket of the process's own, see package ownsocket.
func (env *Env) Own(dir, name string) (net.Listener, error) {
	if env.world == nil {
		return ownsocket.Listen(dir, name)
	}
	return env.world.Own(dir, name)
}

// Files is the file system that the queue is on; nil: the operating system's. Names are relative to the
// queue directory, which is the working directory.
func (env *Env) Files() vfs.FS {
	if env.world == nil {
		return nil
	}
	return env.world.Files()
}

// Change is what is asked before a file outside the queue is renamed, synced or removed, see
// World.Change; nil: nobody.
func (env *Env) Change() func(op, path string) error {
	if env.world == nil {
		return nil
	}
	return env.world.Change
}

// Accounts is the directory of passwd and group; empty: the system's.
func (env *Env) Accounts() string {
	if env.world == nil {
		return ""
	}
	return env.world.Accounts()
}

// Connect is how a delivery agent connects to other hosts; nil: as it likes, with package
// net.
func (env *Env) Connect() func(ctx context.Context, network, addr string) (net.Conn, error) {
	if env.world == nil {
		return nil
	}
	return env.world.Connect
}

// Resolver are the options of the service's resolver: of resolver_address and so on. The error
// is resolver.Configured's.
func (env *Env) Resolver() (resolver.Options, error) {
	o, err := resolver.Configured(env.Config)
	if env.world != nil {
		o.Exchanger = env.world.Names()
	}
	o.Warn = env.Log.Warning
	return o, err
}
