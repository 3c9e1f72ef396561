package account

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/sendlimit/limitclient"
)

// limits makes a client of the sendlimit service.
func (c *command) limits() (*limitclient.Client, error) {
	if c.cfg.String("account_recipient_limit")+c.cfg.String("account_recipient_limit_maps") == "" {
		return nil, cli.Errorf(cli.ExitUnavailable, "neither account_recipient_limit nor account_recipient_limit_maps is set: nothing is counted")
	}
	path := filepath.Join(c.cfg.String("queue_directory"), "private", limitclient.Name)
	return limitclient.New(ipc.Unix(path)), nil
}

// A Used is what an account has sent, as usage -j prints it.
type Used struct {
	User   string      `json:"user"`
	Locked bool        `json:"locked"`
	Limits []UsedLimit `json:"limits"`
}

// A UsedLimit is what counts towards one limit.
type UsedLimit struct {
	Limit string    `json:"limit"`
	Used  int64     `json:"used"`  // recipients
	Until time.Time `json:"until"` // when it begins anew
}

// usage shows what accounts have sent: those that are named, or all that have sent something.
func (c *command) usage() error {
	limits, err := c.limits()
	if err != nil {
		return err
	}
	defer limits.Close()
	names := c.args
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		reply, err := limits.Usage(context.Background(), &proto.Usage{Account: strings.ToLower(name)})
		if err != nil {
			return err
		}
		for _, a := range reply.Accounts {
			if err := c.printUsage(&a); err != nil {
				return err
			}
		}
		if reply.More {
			c.Warn("these are the first %d accounts", proto.MaxUsage)
		}
	}
	return nil
}

func (c *command) printUsage(a *proto.AccountUsage) error {
	u := Used{User: a.Account, Locked: a.Locked, Limits: []UsedLimit{}}
	text := a.Account + ":"
	if a.Locked {
		text += " locked;"
	}
	for _, l := range a.Limits {
		until := time.Unix(l.Until, 0).UTC()
		u.Limits = append(u.Limits, UsedLimit{l.Limit, l.Used, until})
		text += fmt.Sprintf(" %d of %s until %s,", l.Used, l.Limit, until.Format("2006-01-02 15:04 UTC"))
	}
	if len(a.Limits) == 0 {
		text += " no limit,"
	}
	if c.json {
		b, err := json.Marshal(u)
		if err != nil {
			return err
		}
		text = string(b) + ","
	}
	_, err := fmt.Fprintln(c.Stdout, text[:len(text)-1])
	return err
}

// unlock lets accounts send again, as if they had sent nothing.
func (c *command) unlock() error {
	limits, err := c.limits()
	if err != nil {
		return err
	}
	defer limits.Close()
	for _, name := range c.args {
		if _, err := limits.Usage(context.Background(), &proto.Usage{Account: strings.ToLower(name), Unlock: true}); err != nil {
			return err
		}
	}
	return nil
}
