package smtp

import "testing"

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]peerLimits{
		"":                               {},
		"RCPTMAX=100":                    {rcpts: 100},
		"mailmax=1 RcptMax=2 X=3":        {mails: 1, rcpts: 2},
		"RcptDomainMax=1 MAILMAX=999999": {mails: 999999, domains: 1},
		"RCPTDOMAINMAX=0":                {},
		"MAILMAX=0 RCPTMAX=01":           {},
		"MAILMAX=1000000 RCPTMAX=5":      {rcpts: 5},
		"MAILMAX=-1 RCPTMAX=+5":          {},
		"MAILMAX RCPTMAX=":               {},
		"MAILMAX=1x =5 RCPTMAX=٣":        {},
		"RCPTMAX=7 RCPTMAX=5 RCPTMAX=9":  {rcpts: 5},
		"  MAILMAX=3\tRCPTMAX=4  ":       {mails: 3, rcpts: 4},
	} {
		if got := parseLimits(args); got != want {
			t.Errorf("%q: %+v, want %+v", args, got, want)
		}
	}
}
