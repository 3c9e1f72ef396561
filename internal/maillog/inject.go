package maillog

import "strconv"

// InjectClient says which program a message comes from that was handed in by HTTP.
type InjectClient struct {
	QueueID       string
	Name, Addr    string
	Token, Tenant string // the token's name, and whose mail it is; Tenant may be empty
}

// Append implements Event.
func (e InjectClient) Append(b []byte) []byte {
	b = appendClient(append(appendID(b, e.QueueID), "client="...), e.Name, e.Addr)
	return appendAttr(appendAttr(b, ", token=", e.Token), ", tenant=", e.Tenant)
}

// AppendFields implements Fielder.
func (e InjectClient) AppendFields(b []byte) []byte {
	b = appendClientFields(appendString(appendEvent(b, "inject"), "queue_id", e.QueueID), e.Name, e.Addr)
	return appendString(appendString(b, "token", e.Token), "tenant", e.Tenant)
}

// InjectRefused says why a request by HTTP was refused as a whole.
type InjectRefused struct {
	Name, Addr string
	Token      string // the token's name; empty: none is known
	Request    string // its method and path
	Status     int    // of HTTP
	Reason     string
}

// Append implements Event.
func (e InjectRefused) Append(b []byte) []byte {
	b = appendClient(append(appendID(b, ""), "refused: client="...), e.Name, e.Addr)
	b = appendAttr(b, ", token=", e.Token)
	b = append(append(b, ", request="...), e.Request...)
	b = strconv.AppendInt(append(b, ", status="...), int64(e.Status), 10)
	return append(append(b, ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e InjectRefused) AppendFields(b []byte) []byte {
	b = appendString(appendClientFields(appendEvent(b, "inject refused"), e.Name, e.Addr), "token", e.Token)
	b = appendNumber(appendString(b, "request", e.Request), "http_status", int64(e.Status))
	return appendString(b, "reason", e.Reason)
}
