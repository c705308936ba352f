package tablegate

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const domain = "tablegate"

// failure is why a call ended. reason is the gateway's, "" where it gave none.
type failure struct {
	code       codes.Code
	text       string
	reason     string
	retryAfter time.Duration
}

// passes says whether the same call may do better later.
func (f failure) passes() bool {
	switch f.reason {
	case "LIMIT_EXCEEDED", "OVERLOADED", "SLOW_SUBSCRIBER":
		return true
	}
	return f.code == codes.Unavailable || f.code == codes.Canceled
}

// passesOnceAdmitted says whether it may where a stream had brought something.
//
// A stream ends with the credential that it was begun with: the next one shows that which is good by then. And a gateway
// gives a reason with each refusal: without one a proxy has reset the stream, or ended it halfway.
func (f failure) passesOnceAdmitted() bool {
	isCutOff := (f.code == codes.Internal || f.code == codes.Unknown) && f.reason == ""
	return f.passes() || f.code == codes.Unauthenticated || isCutOff
}

func failureOf(err error) failure {
	said := status.Convert(err)
	found := failure{code: said.Code(), text: said.Message()}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == domain {
				found.reason = detail.GetReason()
			}
		case *errdetails.RetryInfo:
			found.retryAfter = max(0, detail.GetRetryDelay().AsDuration())
		}
	}
	return found
}

// SubscribeError says that the gateway refuses the subscription, and would again.
type SubscribeError struct {
	Code   codes.Code
	Reason string // the gateway's ErrorReason without its prefix, or ""
	Text   string
}

func (e *SubscribeError) Error() string {
	name := CodeName(e.Code)
	if e.Reason != "" {
		name += " (" + e.Reason + ")"
	}
	return fmt.Sprintf("%s: %s", name, e.Text)
}

// Reason returns the gateway's reason of what a call returned, as ROW_NOT_FOUND; "" where a gateway gave none.
func Reason(err error) string {
	return failureOf(err).reason
}

// CodeName returns the name that gRPC has for a status, as INVALID_ARGUMENT.
func CodeName(status codes.Code) string {
	return code.Code(status).String()
}
