// Package limitclient asks the sendlimit service, which counts what each account sends.
package limitclient

import (
	"context"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// Name is the name of the service in master.cf.
const Name = "sendlimit"

// patience is how long the service may take. It answers from memory.
const patience = 10 * time.Second

// A Client asks the service. Its methods may be called concurrently.
type Client struct{ ipc *ipc.Client }

// New makes a client of the service at that address.
func New(at ipc.Address) *Client { return &Client{ipc.NewClient(at, nil)} }

// Spend counts recipients of an account, unless a limit of the account is exceeded. An error says
// that the service could not be asked; then it is not known whether they were counted.
func (c *Client) Spend(ctx context.Context, q *proto.Spend) (reply proto.SpendReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = c.ipc.Call(ctx, q, &reply)
	return reply, err
}

// Usage returns what accounts have sent, and unlocks one if it is told to.
func (c *Client) Usage(ctx context.Context, q *proto.Usage) (reply proto.UsageReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = c.ipc.CallAgain(ctx, q, &reply)
	return reply, err
}

// Close closes the connection.
func (c *Client) Close() { c.ipc.Close() }
