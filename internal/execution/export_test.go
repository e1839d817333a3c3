package execution

// NewServiceForTest returns a Service with one running Sandbox, whose Guest is
// g.
func NewServiceForTest(g Guest) *Service { return newService(newOne(), g) }
