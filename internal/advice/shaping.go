package advice

import "posthaste/internal/shaping"

// shaping reads the files of shaping_files: a fault stops the services, and what can have no effect is likely
// not what its writer meant.
func (c *checker) shaping() {
	for _, v := range c.of("shaping_files") {
		files := c.cfg.List("shaping_files")
		if len(files) == 0 {
			continue
		}
		rules, _, err := shaping.Load(files) // the services log what has no effect
		if err != nil {
			c.stop(v, "%v", err)
			return
		}
		for _, w := range rules.Dead() {
			c.warn(v, "%s", w)
		}
		return
	}
}
