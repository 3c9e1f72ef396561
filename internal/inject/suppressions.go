package inject

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/suppress/suppressclient"
)

// What a tenant may know and change of the suppression list: its own entries, of all its mail and of its lists. The token
// says who the tenant is, and every question and change is put together of that name: no field of a request is ever taken
// for a scope. What operators have for all, or for lists of theirs, is not shown.

const (
	// maxSuppressions is how many entries one request may have, and maxSuppressionBody how many octets.
	maxSuppressions    = 1000
	maxSuppressionBody = 1 << 20
)

// A keeper has the suppression list: the suppress service. It may be called concurrently.
type keeper interface {
	Page(ctx context.Context, q *proto.SuppressPage) (proto.SuppressPageReply, error)
	Change(ctx context.Context, q *proto.SuppressChange) (uint64, error)
}

type (
	// Suppression is a recipient who gets no more mail.
	Suppression struct {
		Address string     `json:"address" required:"yes"`
		List    string     `json:"list,omitempty" doc:"A list of the tenant; absent: all mail of the tenant"`
		Reason  string     `json:"reason,omitempty" doc:"complaint, unsubscribe, bounce, or another word; without it manual"`
		Since   *time.Time `json:"since,omitempty" doc:"Of answers"`
		Until   *time.Time `json:"until,omitempty" doc:"When it ends; absent: it does not"`
	}
	// Suppressions are some of them.
	Suppressions struct {
		Suppressions []Suppression `json:"suppressions" required:"yes"`
		Next         string        `json:"next,omitempty" doc:"Of answers: what to ask for with after; absent: these are the last"`
	}
	// Changed says how many entries are other ones now.
	Changed struct {
		Changed uint64 `json:"changed"`
	}
)

// suppressionOperations are those of the role suppress.
func suppressionOperations() []operation {
	list := param{"list", "query", "A list of the tenant", false}
	return []operation{
		{name: "suppressions", method: "GET", path: "/v1/suppressions", role: apitoken.Suppress, summary: "The tenant's entries of the suppression list, in pages",
			params: []param{list, {"address", "query", "Only the entries of this address", false}, {"after", "query", "next of the page before", false}}, result: Suppressions{}, do: (*server).suppressions},
		{name: "suppress", method: "POST", path: "/v1/suppressions", role: apitoken.Suppress, summary: "Add entries. 200 means that they are on stable storage. Who has complained or unsubscribed stays on the list as that",
			bodies: []bodyKind{{"application/json", []any{Suppressions{}}, "A thousand entries at most"}}, result: Changed{}, do: (*server).suppressMore},
		{name: "unsuppress", method: "DELETE", path: "/v1/suppressions", role: apitoken.Suppress, summary: "Remove an entry", params: []param{list, {"address", "query", "The address", false}}, result: Changed{}, do: (*server).suppressLess},
	}
}

// own is the scope of a list of the caller's tenant. The list may be empty.
func (who *caller) own(list string) (string, error) {
	if who.token.Tenant == "" {
		return "", &fault{status: http.StatusForbidden, detail: "the token has no tenant"}
	}
	if list != "" && !suppressclient.ValidList(list) {
		return "", in("list", refuse("it is no name of a list: up to 64 letters, digits and . _ -"))
	}
	return suppressclient.Scope(who.token.Tenant, list), nil
}

// query takes the parameters that are known, and no others.
func query(r *http.Request, names ...string) (map[string]string, error) {
	values := map[string]string{}
	// What cannot be read is no parameter that is absent: without list another scope would be meant.
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, malformed("the query is malformed: %v", err)
	}
	for name, list := range all {
		if !oneOf(name, names...) || len(list) != 1 {
			return nil, in(shown(name), malformed("there is no such parameter, or it is there twice"))
		}
		values[name] = list[0]
	}
	return values, nil
}

// suppressions is GET /v1/suppressions.
func (s *server) suppressions(w http.ResponseWriter, r *http.Request, who *caller) error {
	values, err := query(r, "list", "address", "after")
	if err != nil {
		return err
	}
	scope, err := who.own(values["list"])
	if err != nil {
		return err
	}
	address, err := listed(values["address"])
	if err != nil && values["address"] != "" {
		return err
	}
	after, err := base64.RawURLEncoding.DecodeString(values["after"])
	if err != nil {
		return in("after", malformed("it is not of an answer"))
	}
	q := &proto.SuppressPage{Tenant: who.token.Tenant, Address: address, After: string(after)}
	page, err := s.keeper.Page(r.Context(), q)
	if err != nil {
		return s.unasked(err)
	}
	out := Suppressions{Suppressions: []Suppression{}, Next: base64.RawURLEncoding.EncodeToString([]byte(page.Next))}
	for i := range page.Entries {
		e := &page.Entries[i]
		tenant, list := suppressclient.Parts(e.List)
		if tenant != who.token.Tenant || values["list"] != "" && e.List != scope {
			continue
		}
		since := time.Unix(e.Time, 0).UTC()
		x := Suppression{Address: rfc5322.Quote(e.Address), List: list, Reason: e.Reason, Since: &since}
		if e.Until != 0 {
			until := time.Unix(e.Until, 0).UTC()
			x.Until = &until
		}
		out.Suppressions = append(out.Suppressions, x)
	}
	s.reply(w, http.StatusOK, out)
	return nil
}

// listed is an address of a query as the list has it.
func listed(text string) (address string, err error) {
	address, ok := rfc5322.Mailbox(text)
	if !ok || !suppressclient.ValidAddress(address) {
		return "", in("address", refuse("it is no mail address"))
	}
	return address, nil
}

// unasked says that the suppress service cannot be asked, or has not understood.
func (s *server) unasked(err error) error {
	s.log.Warning("%v", err)
	return later(retryTime, "the suppression list cannot be asked")
}

// suppressMore is POST /v1/suppressions.
func (s *server) suppressMore(w http.ResponseWriter, r *http.Request, who *caller) error {
	if kind, err := kindOf(r); err != nil || kind != "application/json" {
		return &fault{status: http.StatusUnsupportedMediaType, detail: "Content-Type is application/json"}
	}
	if err := noQuery(r); err != nil {
		return err
	}
	var body Suppressions
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSuppressionBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			return tooLarge("the body has more than %d octets", maxSuppressionBody)
		}
		return malformed("%s", err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return malformed("there is more behind the object")
	}
	if len(body.Suppressions) > maxSuppressions {
		return tooLarge("there are more than %d entries", maxSuppressions)
	}
	var list []proto.Suppression
	for i := range body.Suppressions {
		e, err := s.entry(who, &body.Suppressions[i])
		if err != nil {
			return in("suppressions", at(i, err))
		}
		list = append(list, e)
	}
	var changed uint64
	if len(list) > 0 {
		var err error
		// What a recipient has asked for meanwhile is the service's to see.
		changed, err = s.keeper.Change(r.Context(), &proto.SuppressChange{What: proto.SuppressOffer, Entries: list})
		if errors.Is(err, suppressclient.ErrFull) {
			return &fault{status: http.StatusForbidden, field: "suppressions", detail: "the list would have more entries than the tenant may have; none was added"}
		}
		if err != nil {
			return s.unasked(err)
		}
	}
	s.reply(w, http.StatusOK, Changed{changed})
	return nil
}

// entry is one that a client wants to add.
func (s *server) entry(who *caller, x *Suppression) (e proto.Suppression, err error) {
	if e.List, err = who.own(x.List); err != nil {
		return e, err
	}
	a, err := parseAddress(x.Address)
	if err != nil {
		return e, in("address", err)
	}
	// One that the list cannot have would be an error of the service: the client would try all of its entries again, for ever.
	if !suppressclient.ValidAddress(a.Email) {
		return e, in("address", refuse("it is no address that the list can have"))
	}
	if x.Since != nil {
		return e, in("since", refuse("it is now"))
	}
	e.Address, e.Reason, e.Origin, e.Time = a.Email, x.Reason, "token "+who.token.Name, s.now().Unix()
	if e.Reason == "" {
		e.Reason = "manual"
	}
	if !suppressclient.ValidList(e.Reason) {
		return e, in("reason", refuse("it is no word of up to 64 letters, digits and . _ -"))
	}
	if x.Until != nil {
		if e.Until = x.Until.Unix(); e.Until <= e.Time {
			return e, in("until", refuse("it is over"))
		}
	}
	return e, nil
}

// suppressLess is DELETE /v1/suppressions.
func (s *server) suppressLess(w http.ResponseWriter, r *http.Request, who *caller) error {
	values, err := query(r, "list", "address")
	if err != nil {
		return err
	}
	scope, err := who.own(values["list"])
	if err != nil {
		return err
	}
	address, err := listed(values["address"])
	if err != nil {
		return err
	}
	n, err := s.keeper.Change(r.Context(), &proto.SuppressChange{What: proto.SuppressRemove, Entries: []proto.Suppression{{List: scope, Address: address}}})
	if err != nil {
		return s.unasked(err)
	}
	if n == 0 {
		return &fault{status: http.StatusNotFound, field: "address", detail: "it is not on the list"}
	}
	s.reply(w, http.StatusOK, Changed{n})
	return nil
}
