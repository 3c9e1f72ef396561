// Package exporter is the metrics service: it publishes what all processes of
// the mail system count, for Prometheus and whatever else reads OpenMetrics,
// over HTTP at metrics_listen:
//
//	$ curl http://127.0.0.1:9187/metrics
//
// Master starts it when metrics_listen is set; master.cf need not name it.
// Every process connects to its socket and is asked when somebody scrapes (see
// package metrics for how the numbers travel). docs/metrics.md lists them;
// etc/metrics has a dashboard for Grafana and rules for alerts.
//
// # Why a program of its own
//
// Prometheus's client library, and what it needs, would otherwise be part of
// every process: posthaste-metrics is the only one that links it. Where
// metrics_listen is empty no process runs, nothing is counted, and no
// connection is made.
//
// # Scrapes
//
// Scrapes are answered one at a time. A process that does not answer within
// answerTime is left out of the gauges of this scrape; what it has counted is
// part of a later one. Totals are of the mail system since this service first
// started, whatever processes have come and gone: it leaves them to its successor, over reload, stop
// and start, in data_directory. Only a crash of it makes them begin at zero. The counter's
// creation time, which OpenMetrics carries, says when that was.
//
// # Nodes
//
// Where several nodes share the queue (spool_type), /metrics/nodes has what each of them publishes at its own /metrics, with
// the label "node", and posthaste_node_answers, which is 0 for a node that is down or does not answer within nodeTime: its
// numbers are missing, and not zero. One node is then scraped for all. The numbers of others come by way of the queue managers
// and the database; nobody is asked unless somebody scrapes that path.
//
// # Security
//
// HTTP without authentication or TLS: listen on a loopback address, or put a
// proxy before it. What is published names destinations (the busiest twenty)
// and services, no addresses of people and no content. The service runs
// without privileges, reads nothing, and keeps request headers, time and
// number within bounds.
//
// # Standards
//
// OpenMetrics 1.0; the text format of Prometheus for who asks for that.
//
// # Parameters
//
// metrics_listen, queue_service_name, spool_type, cluster_node_name.
//
// # Diagnostics
//
// "metrics_listen = ...: ..." is why the service cannot listen; mail goes on.
package exporter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"posthaste/internal/ipc"
	"posthaste/internal/service"
)

const (
	// answerTime is how long the processes may take to answer.
	answerTime = 3 * time.Second
	// requestTime bounds reading a request and writing its answer, each.
	requestTime = 30 * time.Second
	// maxScrapes is how many requests may wait; others get 503.
	maxScrapes = 4
	// maxHeader bounds a request's header, in octets.
	maxHeader = 8 << 10
)

// Spec declares the service.
func Spec() service.Spec { return service.MetricsSpec(run) }

func run(ctx context.Context, env *service.Env) error {
	address := env.Config.String("metrics_listen")
	l, err := net.Listen("tcp", address) // before privileges are given up: the port may be a low one
	if err != nil {
		return fmt.Errorf("metrics_listen = %s: %w", address, err)
	}
	defer l.Close()
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		env.Log.Warning("metrics_listen = %s: anybody who reaches this address can read the metrics", address)
	}
	data, err := os.OpenRoot(env.Config.String("data_directory"))
	if err != nil {
		env.Log.Warning("totals begin at zero, and are not kept: data_directory: %v", err)
	} else {
		defer data.Close()
	}
	if err := env.Confine(); err != nil {
		return err
	}
	env.Used()
	hub := newHub()
	if data != nil {
		if err := hub.restore(data); err != nil {
			env.Log.Warning("totals begin at zero: %v", err)
		}
	}
	all := openNodes(env, hub)
	defer all.close()
	web := newWeb(hub, all)
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(serving, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		web.Shutdown(closing)
	})
	failed := make(chan error, 1)
	go func() {
		err := <-served
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		failed <- err
		stop()
	}()
	// Clients connect again to the successor: there is no need to wait for them.
	err = env.ServeIPC(serving, &ipc.Server{Handler: hub.handle, OnConn: hub.join, OnClose: hub.leave, OnTrigger: func([]byte) {}}, 0)
	stop()
	err = errors.Join(err, <-failed)
	hub.answering.Wait()
	if data != nil {
		if serr := hub.save(data); serr != nil {
			env.Log.Warning("totals are going to begin at zero: %v", serr)
		}
	}
	return err
}

// newWeb makes the HTTP server. all is nil where the queue is this node's alone.
func newWeb(hub *hub, all *nodes) *http.Server {
	mux := http.NewServeMux()
	publish := func(path string, c prometheus.Collector) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		mux.Handle("GET "+path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true,
			EnableOpenMetricsTextCreatedSamples: true, MaxRequestsInFlight: maxScrapes, Timeout: requestTime}))
	}
	publish("/metrics", hub)
	if all != nil {
		publish("/metrics/nodes", all)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "Posthaste's metrics are at /metrics")
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: requestTime, ReadTimeout: requestTime, WriteTimeout: 2 * requestTime,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader}
}
