package overview

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/standing"
)

const (
	// mostProviders is how many providers a glance names, and mostSources how many sources of each.
	mostProviders = 10
	mostSources   = 10
	// tolerated is how many complaints about a thousand messages large providers put up with.
	tolerated = 1
)

// Taken is how mail was taken in the last 24 hours, and what came back of it.
type Taken struct {
	Delivered  int64   `json:"delivered" doc:"Recipients that got their mail"`
	Deferred   int64   `json:"deferred" doc:"Attempts that were or are to be repeated"`
	Bounced    int64   `json:"bounced" doc:"Recipients that the provider's hosts have refused for good"`
	Later      int64   `json:"bounced_later" doc:"Recipients whose mail was accepted first, and has come back as a report; of mail under the suppression list"`
	Complaints int64   `json:"complaints" doc:"Recipients who have complained; of mail under the suppression list"`
	Rate       float64 `json:"complaint_rate" doc:"Complaints about a thousand deliveries"`
}

// A Provider is how one takes mail.
type Provider struct {
	Name string `json:"provider" doc:"As shaping_files or destination_provider_maps name it, else the site: its MX hosts; other is all that have no name"`
	Taken
	Sources []ProviderSource `json:"sources,omitempty" doc:"The same by the source that the mail was sent from; absent if it is sent from none"`
}

// A ProviderSource is how a provider takes mail from one of our sources.
type ProviderSource struct {
	Name string `json:"source"`
	Taken
}

// takenOf makes numbers of counts.
func takenOf(c *standing.Counts) Taken {
	t := Taken{Delivered: c[standing.Sent], Deferred: c[standing.Deferred], Bounced: c[standing.Bounced], Later: c[standing.Later], Complaints: c[standing.Complaint]}
	// Of mail of yesterday alone there is no rate.
	if t.Delivered > 0 {
		t.Rate = float64(1000*t.Complaints) / float64(t.Delivered)
	}
	return t
}

// Much says whether the complaints are more than large providers put up with.
func (t Taken) Much() bool { return t.Rate > tolerated }

// mail is how much there is to say.
func (t Taken) mail() int64 { return t.Delivered + t.Deferred + t.Bounced + t.Later + t.Complaints }

// before says which of two is told of first.
func (t Taken) before(o Taken) int {
	switch {
	case t.Much() && !o.Much():
		return -1
	case o.Much() && !t.Much():
		return 1
	}
	return cmp.Compare(o.mail(), t.mail())
}

// String is t in one line.
func (t Taken) String() string {
	text := fmt.Sprintf("delivered %s, deferred %s, bounced %s, bounced later %s, complaints %s", Number(t.Delivered), Number(t.Deferred), Number(t.Bounced), Number(t.Later), Number(t.Complaints))
	if rate := t.PerThousand(); rate != "" {
		text += " (" + rate + " of a thousand)"
	}
	return text
}

// PerThousand is the rate of complaints; empty where there are none, or none is known.
func (t Taken) PerThousand() string {
	if t.Rate == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", t.Rate)
}

// askStanding asks a node how providers take its mail. A node that cannot say it, as one of an earlier version, is no less
// alive for that.
func (l *lookedAt) askStanding(ctx context.Context, m Manager) {
	if err := m.Call(ctx, &proto.Standing{}, &l.taken); err != nil {
		l.taken = proto.StandingReply{Problem: err.Error()}
	}
}

// providers are those of all nodes together, and why these are not all.
func providers(looks []lookedAt, managers []Manager, now time.Time) (list []Provider, fault string) {
	all := new(standing.Book)
	var faults []string
	for i := range looks {
		l := &looks[i]
		if l.err != nil {
			continue // the node is named as missing
		}
		problem := l.taken.Problem
		book, err := standing.Decode(l.taken.Book)
		if err != nil {
			problem = err.Error()
		} else {
			all.Merge(now, book)
		}
		if problem != "" && managers[i].Node != "" {
			problem = "node " + managers[i].Node + ": " + problem
		}
		if problem != "" {
			faults = append(faults, problem)
		}
	}
	return providersOf(all.Rows(now)), strings.Join(faults, "; ")
}

// providersOf are those that a glance names.
func providersOf(rows []standing.Row) (list []Provider) {
	var sum standing.Counts // of the provider whose rows are being read
	for i := range rows {
		r := &rows[i]
		if i == 0 || r.Provider != rows[i-1].Provider { // rows are in the order of their names
			sum = standing.Counts{}
			list = append(list, Provider{Name: r.Provider})
		}
		sum.Add(&r.Counts)
		p := &list[len(list)-1]
		p.Taken = takenOf(&sum)
		p.Sources = append(p.Sources, ProviderSource{r.Source, takenOf(&r.Counts)})
	}
	for i := range list {
		p := &list[i]
		if len(p.Sources) == 1 && p.Sources[0].Name == "" {
			p.Sources = nil
		}
		slices.SortStableFunc(p.Sources, func(a, b ProviderSource) int { return a.before(b.Taken) })
		p.Sources = p.Sources[:min(len(p.Sources), mostSources)]
	}
	slices.SortStableFunc(list, func(a, b Provider) int { return a.before(b.Taken) })
	return list[:min(len(list), mostProviders)]
}
