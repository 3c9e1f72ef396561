package agent

import (
	"context"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// callRetry is how long is waited when the queue manager could not be told.
const callRetry = time.Second

// alert has callQueue look whether there is something to tell.
func (s *Server) alert() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// callQueue tells the queue manager of what it cannot ask for: when the one
// that ordered deliveries is gone its successor may know another agent under
// our name, because we retire, or none, because mail goes another way now. It
// returns when there is nothing more to tell and done is closed, or when ctx
// ends.
func (s *Server) callQueue(ctx context.Context, done <-chan struct{}) {
	client := ipc.NewClient(s.opt.Queue, nil)
	defer client.Close()
	var gone <-chan struct{} // whoever was told last
	for {
		var again <-chan time.Time
		ended := done
		if s.homeless() {
			conn, err := s.tellQueue(ctx, client)
			if err == nil {
				gone = conn.Done()
				continue
			}
			again, ended = time.After(callRetry), nil
		}
		select {
		case <-s.news:
		case <-gone:
			gone = nil
		case <-again:
		case <-ended:
			if !s.homeless() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// homeless says whether there is something that no queue manager knows of.
func (s *Server) homeless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.running {
		if isClosed(r.conn) {
			return true
		}
	}
	return s.recent.untold()
}

// tellQueue makes one call. Outcomes have been recorded when it is answered;
// what goes on counts as known as long as the connection stands.
func (s *Server) tellQueue(ctx context.Context, client *ipc.Client) (*ipc.Conn, error) {
	conn, err := client.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var inv proto.Inventory
	var list []*running
	s.mu.Lock()
	for r := range s.running {
		if isClosed(r.conn) {
			inv.Running = append(inv.Running, r.told())
			list = append(list, r)
		}
	}
	parts := s.recent.take()
	for i := range parts {
		inv.Finished = append(inv.Finished, parts[i].list()...)
	}
	s.mu.Unlock()
	err = conn.Call(ctx, &inv, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.recent.giveBack(parts)
		return nil, err
	}
	for _, r := range list {
		if isClosed(r.conn) { // else somebody has attached meanwhile
			r.conn, r.called = conn, true
		}
	}
	return conn, nil
}
