package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
)

// Counted is how many messages fulfil conditions.
type Counted struct {
	Messages int       `json:"messages"`
	Octets   int64     `json:"octets"`
	At       time.Time `json:"at" doc:"When they were counted, for what is done to all of them"`
	Missing  []string  `json:"missing_nodes,omitempty" doc:"Nodes that are down: what they have is not counted, and left alone"`
}

// where are the conditions of a query, as they were at a time: messages grow older, and others come.
func (c *console) where(q *query, at time.Time) (*selection.Selection, error) {
	where := selection.New(at)
	for _, name := range selection.Names() {
		for _, v := range q.values[name] {
			if v == "" {
				continue
			}
			if _, wants := selection.Known(name); !wants {
				v = ""
			}
			if err := where.Set(name, v); err != nil {
				return nil, wrong("%v", err)
			}
		}
	}
	return where, nil
}

func (c *console) opCount(q *query) (any, error) {
	at := c.now()
	where, err := c.where(q, at)
	if err != nil {
		return nil, err
	}
	counted, err := c.mta.count(q.ctx, where)
	counted.At = at
	return &counted, err
}

// countedAt is the parameter at, for which there is no later time than now.
func (c *console) countedAt(q *query) (time.Time, error) {
	now, text := c.now(), q.get("at")
	if text == "" {
		return now, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.After(now) {
		return now, wrong("at is when the messages were counted, as the answer said it")
	}
	return at, nil
}

func (c *console) opAll(q *query) (any, error) {
	at, err := c.countedAt(q)
	if err != nil {
		return nil, err
	}
	where, err := c.where(q, at)
	if err != nil {
		return nil, err
	}
	word := q.get("verb")
	n, err := strconv.Atoi(q.get("count"))
	switch {
	case verbs[word] == 0:
		return nil, wrong("there is no verb %q", word)
	case err != nil || n < 1:
		return nil, wrong("count is how many messages are meant, 1 at least")
	case where.Empty():
		return nil, wrong("there is no condition: all mail would be meant")
	}
	done, missing := 0, []string(nil)
	err = c.audited(q, word, strings.Join(where.Encode()[1:], " "), fmt.Sprintf("%d messages", n), func() (err error) {
		done, missing, err = c.mta.actAll(q.ctx, word, where, n)
		return err
	})
	return &Done{actTexts[word] + ": " + queueclient.Messages(done) + leftOut(missing)}, err
}
