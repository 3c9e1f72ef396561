package advice

import (
	"slices"

	"posthaste/internal/config"
	"posthaste/internal/event"
)

// waits looks whether smtpd_delivery_wait has an effect for any service.
func (c *checker) waits() {
	var own []*config.Config // of the services whose clients may wait
	for i := range c.services {
		s := &c.services[i]
		if s.Command != "smtpd" {
			continue
		}
		if cfg, err := c.cfg.With(s.Overrides()...); err == nil && cfg.Duration("smtpd_delivery_wait") > 0 {
			own = append(own, cfg)
		}
	}
	if len(own) == 0 {
		return
	}
	for _, v := range c.of("smtpd_delivery_wait") {
		switch {
		case v.file == "":
		case event.Enabled(c.cfg):
			c.warn(v, "it has no effect while event_sinks is set: an event must be on the disk before a delivery begins")
		case !slices.ContainsFunc(own, func(cfg *config.Config) bool { return cfg.String("content_filter") == "" }):
			c.warn(v, "it has no effect with content_filter: what goes to the filter is stored; it is for the service that takes mail back from there")
		}
	}
}
